"""Pipeline stages: the layers of each, and the micro-batches in flight on it.

megatron-core 0.19.2 pipeline_parallel/schedules.py. With interleaving a rank has several chunks
of the model: chunk c of stage p has n = layers / (pp × chunks) layers from (c × pp + p) × n on.
Where stages are unequal, the run says how many layers each chunk of each stage has.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import Instant
from ...ledger.mesh import Mesh
from ...ledger.num import SINGLE, Num, holds, largest, nothing, smaller
from ...ledger.remember import remembered
from ...run.phases import OPTIMIZER, STARTUP
from ...run.recompute import FULL, NONE
from ...run.run import Run
from .chunks import StageMoment, chunk_passes, chunk_range, chunks_in_flight, stage_moments
from .instants import Instants, StepInstant, step
from .layer_groups import LayerGroup, LayerGroups, equal_layers, overlap
from .layer_groups import layer_groups as stack_groups


class PipelineStage(Struct, frozen=True, kw_only=True):
    """One stage when most of its micro-batches are in flight.

    - `blocks`: its layer groups. For each of them, numbers of layers:
      `held`: on the stage; `opening`, `closing`: in its first and its last chunk; `working`: in the
      chunk that runs backward, the last one unless chunks are unequal. `waiting`: checkpoints, else
      layers, whose activations are alive meanwhile.
    - `chunk`: the one that runs; `chunks`: indices of each chunk's blocks in an unrolled run of
      several; `flight`: forward passes of a chunk whose activations are alive.
    - `first`: 1 where the stage has the embedding; `last`: 1 where it has the loss; `loss`: 1 where
      the chunk with the loss runs; `losses`: losses that wait for their backward meanwhile.
    """

    blocks: LayerGroups
    held: tuple[Num, ...]
    opening: tuple[Num, ...]
    closing: tuple[Num, ...]
    working: tuple[Num, ...]
    waiting: tuple[Num, ...]
    chunk: Num
    flight: Num
    first: Num
    last: Num
    loss: Num
    losses: Num
    chunks: tuple[tuple[int, ...], ...] = ()

    @property
    def receiving(self) -> set[int]:
        """The last blocks of chunks that do not run at the peak: another stage sends the gradient
        of their output. None of the chunk with the loss.
        """
        if not self.chunks:
            return set()
        running = {self.chunk, len(self.chunks) - 1} if self.last else {self.chunk}
        return {b[-1] for chunk, b in enumerate(self.chunks) if b and chunk not in running}


READ = (  # fields of a run from which its stages are made, besides model, sequence and pipeline
    "documents",
    "padded",
    "ends_counted",
    "micro_batch_group",
    "recompute",
    "recompute_quarters",
    "reentrant",
    "rule",
    "stage",
    "stage_counts",
    "unrolled",
    "virtual_stages",
)


def pipeline_stages(run: Run) -> tuple[PipelineStage, ...]:
    """The run's stage at each moment of its schedule that may have the peak; runs that differ in
    nothing that a stage depends on have the very same ones.
    """
    bare = Run(
        arch=run.arch,
        mesh=Mesh(pp=run.mesh.pp),
        batch=1,
        seq=run.seq,
        micro_batches=run.micro_batches,
        precision="",
        **{name: getattr(run, name) for name in READ},
    )
    return _pipeline_stages(bare)


@remembered(3)
def _pipeline_stages(run: Run) -> tuple[PipelineStage, ...]:
    moments = stage_moments(run)
    return tuple(pipeline_stage(run, moment) for moment in moments) or (pipeline_stage(run),)


def pipeline_stage(run: Run, moment: StageMoment | None = None) -> PipelineStage:
    """The layers of the run's stage, and its micro-batches in flight at a moment; without one, as
    equal chunks have them.
    """
    pp, stage, chunks = run.mesh.pp, run.stage, run.virtual_stages
    flight = chunks_in_flight(pp, stage, run.micro_batches, chunks, run.micro_batch_group or pp)
    rows: list[tuple[LayerGroup, Num, Num, Num, Num, Num]] = []
    first: Num = 0
    even = len(run.arch.layers) // (pp * chunks)
    equal = not isinstance(chunks, SINGLE) and equal_layers(run) and not run.stage_counts
    parts = [] if equal else _chunk_parts(run, flight, moment)
    for group in _chunk_groups(run, even):
        for index, (policy, _, _, together) in enumerate(_policies(run, even)):
            held, opening, closing, working, alive = (
                _equal_counts(run, index, flight, moment)
                if equal
                else _group_counts(parts, (first, group.count), index)
            )
            if not nothing(held):
                part = replace(
                    group,
                    count=working // together,
                    recompute=policy,
                    reentrant=policy == FULL,
                    together=together,
                )
                waiting = (alive - working) // together
                rows.append((part, held, opening, closing, working, waiting))
        first += group.count
    if not rows:  # a stage without a layer: only the embedding, only the loss, or neither
        rows = [(replace(group, count=0), 0, 0, 0, 0, 0)]
    if moment is not None and all(isinstance(row[4], SINGLE) for row in rows):
        rows.sort(key=lambda row: int(row[4]) > 0)  # the layers that run come last
    last = holds(stage == pp - 1)
    runs_loss = last if moment is None else last * holds(moment.chunk == chunks - 1)
    chunk = chunks - 1 if moment is None else moment.chunk
    names = ("blocks", "held", "opening", "closing", "working", "waiting")
    return PipelineStage(
        **dict(zip(names, zip(*rows, strict=True), strict=True)),
        chunk=chunk,
        flight=flight,
        first=holds(stage == 0),
        last=last,
        loss=runs_loss,
        losses=0 if moment is None else last * moment.of_chunk(chunks - 1) - runs_loss,
        chunks=_chunk_blocks(run, [row[1] for row in rows], chunk),
    )


def _chunk_blocks(run: Run, held: list[Num], running: Num) -> tuple[tuple[int, ...], ...]:
    """The indices of each chunk's blocks; those of the chunk that runs are the last. `held`: layers
    of each block.
    """
    if not run.unrolled or run.virtual_stages == 1:
        return ()
    chunks = range(int(run.virtual_stages))
    blocks: list[tuple[int, ...]] = [() for _ in chunks]
    at = 0
    for chunk in sorted(chunks, key=lambda c: c == running):
        left = int(chunk_range(run, chunk)[1])
        while left > 0:
            blocks[chunk] += (at,)
            left -= int(held[at])
            at += 1
    return tuple(blocks)


class ChunkPart(Struct, frozen=True):
    """A chunk of a stage: the layers under each policy, [low, high); 1 where the stage has it,
    where it is the last one, and where it runs; its passes that are alive.
    """

    ranges: tuple[tuple[Num, Num], ...]
    exists: Num
    ends: Num
    runs: Num
    alive: Num


def _chunk_parts(run: Run, flight: Num, moment: StageMoment | None) -> list[ChunkPart]:
    """The chunks of the run's stage."""
    chunks, group = run.virtual_stages, run.micro_batch_group or run.mesh.pp
    parts = []
    for chunk in range(largest(chunks)):
        low, size = chunk_range(run, chunk)
        ranges = tuple((low + start, low + end) for _, start, end, _ in _policies(run, size))
        ends = holds(chunk == chunks - 1)
        if moment is None:
            runs, alive = ends, chunk_passes(flight, group, chunks, chunk, run.micro_batches)
        else:
            runs, alive = holds(chunk == moment.chunk), moment.alive[chunk]
        parts.append(ChunkPart(ranges, holds(chunk < chunks), ends, runs, alive))
    return parts


def _group_counts(
    parts: list[ChunkPart], place: tuple[Num, Num], index: int
) -> tuple[Num, Num, Num, Num, Num]:
    """Layers of one group, by its first layer and their number (`place`), under one of the
    policies: on the stage, in its first and its last chunk, at work, and alive.
    """
    held: Num = 0
    opening: Num = 0
    closing: Num = 0
    working: Num = 0
    alive: Num = 0
    for chunk, part in enumerate(parts):
        count = overlap(*place, *part.ranges[index]) * part.exists
        if type(count) is int and not count:
            continue
        held = held + count
        opening = count if chunk == 0 else opening
        closing = closing + count * part.ends
        working = working + count * part.runs
        alive = alive + count * part.alive
    return held, opening, closing, working, alive


def _equal_counts(
    run: Run, index: int, flight: Num, moment: StageMoment | None
) -> tuple[Num, Num, Num, Num, Num]:
    """The same for arrays of runs whose layers are all equal, without a sum over chunks: chunks
    are as long as those in the middle, but for the first one of all and the last one of all.
    """
    pp, chunks, stage = run.mesh.pp, run.virtual_stages, run.stage
    embedding, loss = run.ends_counted
    size = (len(run.arch.layers) + embedding + loss) // (pp * chunks)

    def count(layers: Num) -> Num:
        _, start, end, _ = _policies(run, layers)[index]
        return end - start

    usual = count(size)
    if not (embedding or loss):
        return usual * chunks, usual, usual, usual, usual * flight
    first, last = holds(stage == 0) * embedding, holds(stage == pp - 1) * loss
    shorter, single = usual - count(size - 1), holds(chunks == 1)
    opening = usual - shorter * (first + last * single)
    closing = usual - shorter * (last + first * single)
    held = usual * chunks - shorter * (first + last)
    if moment is None:
        return held, opening, closing, closing, held
    working = usual - shorter * (
        first * holds(moment.chunk == 0) + last * holds(moment.chunk == chunks - 1)
    )
    missing = first * moment.alive[0] + last * moment.of_chunk(chunks - 1)
    return held, opening, closing, working, usual * flight - shorter * missing


def _chunk_groups(run: Run, size: Num) -> LayerGroups:
    """The model's layers in groups; in an unrolled run one for each layer, or each checkpoint of
    several layers, whose chunks have `size` each.
    """
    together, plain = run.rule.layers_together, replace(run, recompute=NONE)
    if not (run.unrolled and run.recompute == FULL and together > 1):
        return stack_groups(plain, 0, len(run.arch.layers))
    (group,) = stack_groups(replace(plain, unrolled=False), 0, len(run.arch.layers))
    chunk = [min(together, int(size) - start) for start in range(0, int(size), together)]
    chunks = len(run.arch.layers) // int(size)
    return tuple(replace(group, count=count) for count in chunk * chunks)


def _policies(run: Run, size: Num) -> tuple[tuple[str, Num, Num, int], ...]:
    """(recompute, first layer, end, layers of one checkpoint) in a chunk of `size` layers.

    Megatron's `block` recomputes its first layers, `uniform` all of them, some at a time.
    """
    first, together = run.rule.first_layers, run.rule.layers_together
    if run.recompute == FULL and together > 1:
        rest = int(size) % together
        pieces = ((FULL, 0, size - rest, together), (FULL, size - rest, size, rest or 1))
        return tuple(piece for piece in pieces if not nothing(piece[2] - piece[1]))
    if run.recompute != FULL or (run.recompute_quarters == 4 and first is None):
        return ((run.recompute, 0, size, 1),)
    even = len(run.arch.layers) // (run.mesh.pp * run.virtual_stages)
    limit = smaller(even * run.recompute_quarters // 4 if first is None else first, size)
    return ((FULL, 0, limit, 1), (NONE, limit, size, 1))


def beats(
    stage: PipelineStage, startup: tuple[tuple[str, str], ...], *, every: bool = False
) -> Instants:
    """The instants of start-up, (name, title) each, then of a step with all its micro-batches in
    flight. `every`: forward has one for each layer of an unrolled run.
    """
    none = tuple(0 for _ in stage.blocks)
    begin = tuple(
        StepInstant(instant=Instant(name=n, phase=STARTUP, title=t), saved=none, grads=none)
        for n, t in startup
    )
    ranges = tuple(group.stretch for group in stage.blocks)
    return begin + tuple(
        _with_waiting(instant, stage)
        for instant in step(ranges, head=stage.loss, embedding=stage.first, every=every)
    )


def _with_waiting(instant: StepInstant, stage: PipelineStage) -> StepInstant:
    """The same instant with the activations of the other micro-batches in flight."""
    if instant.instant.phase == OPTIMIZER:
        return instant
    saved = tuple(a + b for a, b in zip(instant.saved, stage.waiting, strict=True))
    if instant.work != "layer":
        return replace(instant, saved=saved)
    present = instant.instant.present * holds(stage.working[instant.stretch] > 0)
    return replace(instant, saved=saved, instant=replace(instant.instant, present=present))


def stage_layers(run: Run) -> list[int]:
    """The number of layers of every stage."""
    pp = int(run.mesh.pp)
    if run.stage_counts:
        return [sum(row[stage] for row in run.stage_counts) for stage in range(pp)]
    chunks = range(int(run.virtual_stages))
    runs = [replace(run, stage=stage) for stage in range(pp)]
    return [sum(int(chunk_range(one, chunk)[1]) for chunk in chunks) for one in runs]
