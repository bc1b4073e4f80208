"""The stream of an interleaved stage: every pass of every chunk in the order of the schedule.

megatron-core 0.19.2 pipeline_parallel/schedules.py:992.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ....ledger.ledger import Ledger
from ....run.phases import BACKWARD, FORWARD
from ....run.run import Run
from ...step.block_events import HEAD
from ...step.chunks import schedule
from ...step.pipeline import PipelineStage
from ...step.stream_phases import Phase
from ...step.stream_writer import StreamWriter
from .model_inputs import embedding_steps
from .stream import PipelineStreamWriter, clipped_gradients


def stage_writer(run: Run, stage: PipelineStage) -> Callable[[Ledger], StreamWriter] | None:
    """The writer of a stage's stream, None in a rolled run."""
    if not run.unrolled:
        return None
    front = embedding_steps(run)[:-1] if stage.first else ()
    clipped = clipped_gradients(run)
    if run.virtual_stages > 1:
        return partial(InterleavedStreamWriter, run=run, stage=stage, front=front, clipped=clipped)
    return partial(PipelineStreamWriter, flight=int(stage.flight), front=front, clipped=clipped)


class InterleavedStreamWriter(PipelineStreamWriter):
    """Writes warm-up forwards, then one forward and one backward in turn, then the backwards left;
    a pass is one micro-batch's through one chunk.

    `run`, `stage`: the stage that is written; its ledger has an instant for each of its blocks, at
    the highest moment of the schedule.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        stage: PipelineStage,
        front: tuple[int, ...],
        clipped: tuple[int, ...] = (),
    ) -> None:
        super().__init__(ledger, int(stage.flight), front, clipped)
        self.run, self.stage = run, stage
        self.passes: list[int] = []  # in flight, the oldest first
        entries = [(i, entry) for i, entry in enumerate(self.entries) if int(entry.bytes)]
        for name in (i.name for i in ledger.instants if not i.present):  # of other chunks
            alive = {i: int(entry.live.get(name, 0)) for i, entry in entries}
            self.alive[name] = {i: copies for i, copies in alive.items() if copies}

    def order(self, phases: list[Phase], micro_batches: int) -> list[Phase]:
        """The passes of all chunks instead of the micro-batches of one."""
        ordered, size, warm = phases[:1], 2 * micro_batches + 1, self.flight - 1
        for start in range(1, len(phases), size):
            step = phases[start : start + size]
            rest = [name for name in step[1].names if name not in self.plays]
            forward, backward = self._passes(step[0].title.partition(".")[0], rest, micro_batches)
            ordered += forward[:warm]
            for pair in zip(forward[warm:], backward, strict=False):
                ordered += pair
            ordered += [*backward[len(forward) - warm :], step[-1]]
        return ordered

    def _passes(
        self, step: str, rest: list[str], micro_batches: int
    ) -> tuple[list[Phase], list[Phase]]:
        """The forward and the backward passes of a step, each in their order. `rest`: instants of
        backward behind the first layer's.
        """
        chunks, group = int(self.run.virtual_stages), self.run.micro_batch_group
        table = schedule(micro_batches, chunks, int(group or self.run.mesh.pp))
        numbers = {one: number for number, one in enumerate(table)}
        back = [(chunks - 1 - chunk, batch) for chunk, batch in table]
        ahead, behind = (self._names(forward=forward) for forward in (True, False))
        behind[0] += rest
        forward = [
            Phase(f"{step}.a{n}.fwd", ahead[chunk], FORWARD, n)
            for n, (chunk, _) in enumerate(table)
        ]
        backward = [
            Phase(f"{step}.a{numbers[one]}.bwd", behind[one[0]], BACKWARD, numbers[one])
            for one in back
        ]
        return forward, backward

    def _names(self, *, forward: bool) -> list[list[str]]:
        """The instants of each chunk's blocks in one direction."""
        name_of = {play.block: n for n, play in self.plays.items() if play.forward == forward}
        *earlier, last = self.stage.chunks
        blocks = (*earlier, (*last, HEAD) if self.stage.last else last)
        return [[name_of[i] for i in (one if forward else one[::-1])] for one in blocks]

    def begin(self, phase: Phase) -> None:
        """A pass begins its forward, or its backward."""
        super().begin(phase)
        if phase.kind == FORWARD:
            self.passes.append(phase.micro_batch)
        elif phase.kind == BACKWARD:  # it becomes the first of those in flight
            at = self.passes.index(phase.micro_batch)
            del self.passes[at]
            self.waiting_blocks.insert(0, self.waiting_blocks.pop(at))
            self.kept = self.waiting_blocks[0]
            self.passes.insert(0, phase.micro_batch)

    def mark(self, phase: Phase) -> None:
        """A pass ends."""
        if phase.kind == BACKWARD:
            del self.passes[0]
        super().mark(phase)
