"""Pipeline stages: the layers of each, and the micro-batches in flight on it.

megatron-core 0.19.2 pipeline_parallel/schedules.py. With interleaving a rank has several chunks
of the model: chunk c of stage p has n = layers / (pp × chunks) layers from (c × pp + p) × n on.
Where stages are unequal, the run says how many layers each chunk of each stage has.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ..autograd.walk import BlockWalk
from ..ledger.ledger import ACT, IN_FLIGHT, INPUTS_IN_FLIGHT, Entry, Instant
from ..ledger.num import EMPTY, Num, choose, holds, larger, nothing, smaller
from ..ledger.source import Source
from ..model.arch import Layer
from ..run.phases import OPTIMIZER, STARTUP
from ..run.run import Run
from .instants import Instants, StepInstant, in_flight, step
from .layer_groups import LayerGroup, LayerGroups, overlap
from .layer_groups import layer_groups as stack_groups


class PipelineStage(Struct, frozen=True, kw_only=True):
    """One stage when most of its micro-batches are in flight.

    - `blocks`: its layer groups. For each of them, numbers of layers:
      `held`: on the stage; `opening`, `closing`: in its first and its last chunk; `working`: in the
      chunk that runs backward, the last one unless chunks are unequal. `waiting`: checkpoints, else
      layers, whose activations are alive meanwhile.
    - `flight`: forward passes of a chunk whose activations are alive.
    - `first`: 1 where the stage has the embedding; `last`: 1 where it has the loss.
    """

    blocks: LayerGroups
    held: tuple[Num, ...]
    opening: tuple[Num, ...]
    closing: tuple[Num, ...]
    working: tuple[Num, ...]
    waiting: tuple[Num, ...]
    flight: Num
    first: Num
    last: Num


def chunks_in_flight(pp: Num, stage: Num, micro_batches: Num, chunks: Num, group: Num) -> Num:
    """Forward passes that wait for their backward; `group`: passes of a chunk before the next
    one's.

    1F1B: min(pp - stage, m) (schedules.py:2243). Interleaved: 2 (pp - stage - 1) warm-up passes
    more than (chunks - 1) × group, and the one that runs (schedules.py:937-950).
    """
    warm = (pp - stage - 1) * 2 + (chunks - 1) * group + 1
    interleaved = smaller(warm, micro_batches * chunks)
    return choose(chunks > 1, interleaved, in_flight(pp, stage, micro_batches))


def chunk_passes(passes: Num, group: Num, chunks: Num, chunk: int, micro_batches: Num) -> Num:
    """How many of a stage's first passes are of one chunk: each chunk runs `group` at a time, and
    in the end as many as are left (schedules.py get_schedule_table).
    """
    cycles = smaller(passes // (group * chunks), micro_batches // group)
    size = smaller(micro_batches - cycles * group, group)
    rest = larger(passes - cycles * group * chunks - chunk * size, 0)
    return cycles * group + smaller(rest, size)


def pipeline_stage(run: Run) -> PipelineStage:
    """The layers of the run's stage, and its micro-batches in flight."""
    pp, stage, chunks = run.mesh.pp, run.stage, run.virtual_stages
    group_size = run.micro_batch_group or pp
    flight = chunks_in_flight(pp, stage, run.micro_batches, chunks, group_size)
    moment = busiest_moment(run, int(flight)) if run.stage_counts else None
    rows: list[tuple[LayerGroup, Num, Num, Num, Num, Num]] = []
    first: Num = 0
    even = len(run.arch.layers) // (pp * chunks)
    for group in _chunk_groups(run, even):
        for index, (policy, _, _, together) in enumerate(_policies(run, even)):
            total: Num = 0
            opening: Num = 0
            closing: Num = 0
            working: Num = 0
            alive: Num = 0
            for chunk in range(_most(chunks)):
                low, size = chunk_range(run, chunk)
                _, start, end, _ = _policies(run, size)[index]
                count = overlap(first, group.count, low + start, low + end) * holds(chunk < chunks)
                total = total + count
                opening = count if chunk == 0 else opening
                ends = holds(chunk == chunks - 1)
                closing = closing + count * ends
                working = working + count * (ends if moment is None else int(chunk == moment.chunk))
                if moment is None:
                    passes = chunk_passes(flight, group_size, chunks, chunk, run.micro_batches)
                else:
                    passes = moment.alive[chunk]
                alive = alive + count * passes
            if not nothing(total):
                part = replace(
                    group,
                    count=working // together,
                    recompute=policy,
                    reentrant=policy == "full",
                    together=together,
                )
                waiting = (alive - working) // together
                rows.append((part, total, opening, closing, working, waiting))
        first += group.count
    if moment is not None:  # the layers that run come last, as those of the last chunk do
        rows.sort(key=lambda row: int(row[4]) > 0)
    columns = tuple(zip(*rows, strict=True))
    return PipelineStage(
        blocks=columns[0],
        held=columns[1],
        opening=columns[2],
        closing=columns[3],
        working=columns[4],
        waiting=columns[5],
        flight=flight,
        first=holds(stage == 0),
        last=holds(stage == pp - 1),
    )


def chunk_range(run: Run, chunk: int) -> tuple[Num, Num]:
    """The first layer of one chunk of the run's stage, and how many layers it has."""
    pp, stage = run.mesh.pp, run.stage
    if run.stage_counts:
        before = [count for row in run.stage_counts[:chunk] for count in row]
        row = run.stage_counts[chunk]
        return sum(before) + sum(row[: int(stage)]), row[int(stage)]
    size = len(run.arch.layers) // (pp * run.virtual_stages)
    return (chunk * pp + stage) * size, size


class StageMoment(Struct, frozen=True):
    """When a stage of unequal chunks has most layers' activations: the chunk that runs backward,
    and the passes of each chunk that are alive.
    """

    chunk: int
    alive: tuple[int, ...]


def busiest_moment(run: Run, flight: int) -> StageMoment:
    """The moment of the schedule at which most layers' activations are alive, and then the one at
    which most layers are at work.

    Each forward after the warm-up is followed by the backward of the oldest pass, chunks in reverse
    order (schedules.py get_model_chunk_id). The last stage's is with the loss.
    """
    chunks, batches = int(run.virtual_stages), int(run.micro_batches)
    group = int(run.micro_batch_group or run.mesh.pp)
    sizes = [row[int(run.stage)] for row in run.stage_counts]

    def passes(count: int) -> list[int]:
        return [int(chunk_passes(count, group, chunks, c, batches)) for c in range(chunks)]

    moments = []
    for done in range(min(batches * chunks - flight, 2 * group * chunks) + 1):
        begun, ended = passes(flight + done), passes(done)[::-1]
        alive = tuple(a - b for a, b in zip(begun, ended, strict=True))
        following = passes(done + 1)[::-1]
        chunk = next(c for c in range(chunks) if following[c] > ended[c])
        if chunk == chunks - 1 or run.stage < run.mesh.pp - 1:
            moments.append(StageMoment(chunk, alive))

    def height(moment: StageMoment) -> tuple[int, int]:
        saved = sum(a * n for a, n in zip(moment.alive, sizes, strict=True))
        return saved, sizes[moment.chunk]

    return max(moments, key=height)


def chunk_layers(run: Run, chunk: int) -> tuple[Layer, ...]:
    """The layers of one chunk of the run's stage (for one run, not for arrays)."""
    low, size = chunk_range(run, chunk)
    return tuple(run.arch.layers[int(low) : int(low + size)])


def _chunk_groups(run: Run, size: Num) -> LayerGroups:
    """The model's layers in groups; in an unrolled run one for each layer, or each checkpoint of
    several layers, whose chunks have `size` each.
    """
    together, plain = run.rule.layers_together, replace(run, recompute="none")
    if not (run.unrolled and run.recompute == "full" and together > 1):
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
    if run.recompute == "full" and together > 1:
        rest = int(size) % together
        pieces = (("full", 0, size - rest, together), ("full", size - rest, size, rest or 1))
        return tuple(piece for piece in pieces if not nothing(piece[2] - piece[1]))
    if run.recompute != "full" or (run.recompute_quarters == 4 and first is None):
        return ((run.recompute, 0, size, 1),)
    even = len(run.arch.layers) // (run.mesh.pp * run.virtual_stages)
    limit = smaller(even * run.recompute_quarters // 4 if first is None else first, size)
    return (("full", 0, limit, 1), ("none", limit, size, 1))


def _most(chunks: Num) -> int:
    """The largest number of chunks in one run or in an array of runs."""
    return int(chunks.max()) if hasattr(chunks, "max") else int(chunks)


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
        for instant in step(ranges, head=stage.last, embedding=stage.first, every=every)
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
    return [len(run.arch.layers) // pp] * pp


def waiting_entries(
    index: int,
    group: LayerGroup,
    walk: BlockWalk,
    instants: Instants,
    layer_source: Source,
    checkpoint_source: Source,
) -> Iterator[Entry]:
    """What other micro-batches in flight keep, in addition to the one whose blocks have events.

    `index` is the layer group's; the sources are those of what a layer and of what a checkpointed
    layer keeps.
    """

    def in_events(i: StepInstant) -> int:
        runs = group.count and (i.work == "head" or (i.work == "layer" and index < i.stretch))
        return int(bool(runs))

    live = {
        i.name: i.saved[index] - in_events(i) for i in instants if i.saved[index] > in_events(i)
    }
    if not live:
        return
    full = group.recompute == "full"
    sizes = (walk.input_bytes,) if full else tuple(size for _, size in walk.saved)
    yield Entry(
        name=f"{group.title}: kept by micro-batches in flight",
        kind=ACT,
        bytes=sum(sizes, EMPTY),
        live=live,
        source=checkpoint_source if full else layer_source,
        tensors=lambda: sizes,
        role=INPUTS_IN_FLIGHT if full else IN_FLIGHT,
    )
