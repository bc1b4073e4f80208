"""The stream of one stage: its embedding, and 1F1B with several micro-batches in flight."""

from __future__ import annotations

from msgspec.structs import replace

from ....ledger.ledger import PER_MICRO_BATCH, Ledger
from ....run.phases import BACKWARD, FORWARD, OPTIMIZER
from ....run.run import Run
from ...step.cycles import KeptNumbers
from ...step.stream_phases import Phase
from ...step.stream_writer import StreamWriter
from .parameters import stepped_parameters
from .states import implementation

EPILOGUE = "epilogue"  # the instant at which DeepSpeed reduces gradients


def clipped_gradients(run: Run) -> tuple[int, ...]:
    """Bytes of each gradient that clipping scales in a new tensor: where Transformer Engine has no
    kernel for it (optimizer/clip_grads.py, utils.py:local_multi_tensor_scale).
    """
    if not run.clipping or implementation(run) == "fused":
        return ()
    return tuple(4 * elements for _, elements in stepped_parameters(run))


class PipelineStreamWriter(StreamWriter):
    """Writes warm-up forwards, then one forward and one backward in turn, then the backwards left.

    megatron-core 0.19.2 pipeline_parallel/schedules.py:2243. The oldest micro-batch in flight runs
    backward. `flight`: micro-batches in flight; `front`: how many of the writer's own tensors the
    embedding makes before its output; the others are gradients, each scaled in a new tensor.
    """

    def __init__(self, ledger: Ledger, flight: int, front: int = 0) -> None:
        super().__init__(ledger)
        self.flight, self.front = flight, front
        self.tables: dict[tuple[object, ...], dict[int, int]] = {}
        numbered = enumerate(self.entries)
        self.per_micro_batch = {i for i, entry in numbered if entry.role == PER_MICRO_BATCH}
        self.waiting_blocks: list[
            dict[int, KeptNumbers]
        ] = []  # of each micro-batch, the oldest first

    def input(self, size: int) -> int:
        """The first block's input: the embedding's output, or what another stage has sent."""
        steps = [self.make_own(number) for number in range(self.front)]
        output = self.make(size)
        self.free(steps)
        return output

    def order(self, phases: list[Phase], micro_batches: int) -> list[Phase]:
        """The phases in the order of the schedule; a pipeline reduces its gradients after the last
        backward.
        """
        ordered, size, warm = phases[:1], 2 * micro_batches + 1, self.flight - 1
        for start in range(1, len(phases), size):
            step = phases[start : start + size]
            forward, backward = self.directions(step, micro_batches)
            ordered += forward[:warm]
            for pair in zip(forward[warm:], backward, strict=False):
                ordered += pair
            ordered += [*backward[len(forward) - warm :], step[-1]]
        return ordered

    def directions(self, step: list[Phase], micro_batches: int) -> tuple[list[Phase], list[Phase]]:
        """The forwards and the backwards of a step, each in their order."""
        forward, backward = step[:-1:2], step[1:-1:2]
        for index, phase in enumerate(backward[:-1] if self.flight - 1 else ()):
            names = [name for name in phase.names if name != EPILOGUE]
            backward[index] = replace(phase, names=names)
        return forward, backward

    def begin(self, phase: Phase) -> None:
        """A micro-batch begins its forward, or the oldest one its backward; or gradients are
        clipped before the step.
        """
        if phase.kind == FORWARD:
            self.waiting_blocks.append({})
            self.kept = self.waiting_blocks[-1]
        elif phase.kind == BACKWARD:
            self.kept = self.waiting_blocks[0]
        elif phase.kind == OPTIMIZER:
            for number in range(self.front, len(self.own)):
                self.free((self.make_own(number),))

    def mark(self, phase: Phase) -> None:
        """A phase ends: an output or a gradient that is sent to another stage is freed."""
        if phase.kind == FORWARD and self.flow >= 0:
            self.free((self.flow,))
            self.flow = -1
        if phase.kind == BACKWARD:
            self.waiting_blocks.pop(0)
            if self.back >= 0:
                self.free((self.back,))
                self.back = -1
        super().mark(phase)

    def _table(self, name: str) -> dict[int, int]:
        """The copies of each entry; of a micro-batch's entries one for each that is in flight."""
        missing = self.flight - len(self.waiting_blocks)
        key = name, missing, self.first, len(self.late)  # entries only leave `late`
        if key not in self.tables:
            self.tables[key] = self._table_without(name, missing)
        return self.tables[key]

    def _table_without(self, name: str, missing: int) -> dict[int, int]:
        """The copies of each entry with `missing` micro-batches fewer in flight."""
        table = super()._table(name)
        if not missing or name in self.updates:
            return table
        copies = {i: n - missing if i in self.per_micro_batch else n for i, n in table.items()}
        return {i: n for i, n in copies.items() if n > 0}

    def keep(self, index: int, copies: int) -> None:
        """Make or free copies; the oldest micro-batch's is freed first."""
        tensors = self.held.get(index, [])
        while index in self.per_micro_batch and len(tensors) > copies:
            self.free(tensors.pop(0))
        super().keep(index, copies)
