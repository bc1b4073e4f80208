"""Pipeline stages: the layers of each, and the micro-batches in flight on it.

megatron-core 0.19.2 pipeline_parallel/schedules.py. With interleaving a rank has several chunks
of the model: chunk c of stage p has n = layers / (pp × chunks) layers from (c × pp + p) × n on.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ..autograd.walk import BlockWalk
from ..ledger.ledger import ACT, FIRST, IN_FLIGHT, INPUTS_IN_FLIGHT, LAST, Entry, Instant
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
      `held`: on the stage; `opening`: in its first chunk; `working`: in its last chunk, which runs
      backward first; `waiting`: those whose activations are alive meanwhile.
    - `flight`: forward passes of a chunk whose activations are alive.
    - `first`: 1 where the stage has the embedding; `last`: 1 where it has the loss.
    """

    blocks: LayerGroups
    held: tuple[Num, ...]
    opening: tuple[Num, ...]
    working: tuple[Num, ...]
    waiting: tuple[Num, ...]
    flight: Num
    first: Num
    last: Num


def chunks_in_flight(pp: Num, stage: Num, micro_batches: Num, chunks: Num) -> Num:
    """Forward passes that wait for their backward.

    1F1B: min(pp - stage, m) (schedules.py:2243). Interleaved: 2 (pp - stage - 1) warm-up passes
    more than (chunks - 1) × pp, and the one that runs (schedules.py:937-950).
    """
    warm = (pp - stage - 1) * 2 + (chunks - 1) * pp + 1
    interleaved = smaller(warm, micro_batches * chunks)
    return choose(chunks > 1, interleaved, in_flight(pp, stage, micro_batches))


def chunk_flight(flight: Num, pp: Num, chunks: Num, chunk: int) -> Num:
    """How many of the passes in flight are of one chunk: each chunk runs pp passes at a time."""
    cycle = pp * chunks
    rest = larger(flight % cycle - chunk * pp, 0)
    return flight // cycle * pp + smaller(rest, pp)


def pipeline_stage(run: Run) -> PipelineStage:
    """The layers of the run's stage, and its micro-batches in flight."""
    pp, stage, chunks = run.mesh.pp, run.stage, run.virtual_stages
    size = len(run.arch.layers) // (pp * chunks)
    flight = chunks_in_flight(pp, stage, run.micro_batches, chunks)
    rows: list[tuple[LayerGroup, Num, Num, Num, Num]] = []
    first: Num = 0
    for group in stack_groups(replace(run, recompute="none"), 0, len(run.arch.layers)):
        for policy, start, end in _policies(run, size):
            total: Num = 0
            opening: Num = 0
            working: Num = 0
            alive: Num = 0
            for chunk in range(_most(chunks)):
                low = (chunk * pp + stage) * size
                count = overlap(first, group.count, low + start, low + end) * holds(chunk < chunks)
                total = total + count
                opening = count if chunk == 0 else opening
                working = working + count * holds(chunk == chunks - 1)
                alive = alive + count * chunk_flight(flight, pp, chunks, chunk)
            if not nothing(total):
                part = replace(group, count=working, recompute=policy, reentrant=policy == "full")
                rows.append((part, total, opening, working, alive - working))
        first += group.count
    columns = tuple(zip(*rows, strict=True))
    return PipelineStage(
        blocks=columns[0],
        held=columns[1],
        opening=columns[2],
        working=columns[3],
        waiting=columns[4],
        flight=flight,
        first=holds(stage == 0),
        last=holds(stage == pp - 1),
    )


def chunk_layers(run: Run, chunk: int) -> tuple[Layer, ...]:
    """The layers of one chunk of the run's stage (for one run, not for arrays)."""
    pp, stage, chunks = int(run.mesh.pp), int(run.stage), int(run.virtual_stages)
    size = len(run.arch.layers) // (pp * chunks)
    low = (chunk * pp + stage) * size
    return tuple(run.arch.layers[low : low + size])


def _policies(run: Run, size: Num) -> tuple[tuple[str, Num, Num], ...]:
    """(recompute, first layer, end) in a chunk; Megatron's `block` recomputes its first layers."""
    if run.recompute != "full" or run.recompute_quarters == 4:
        return ((run.recompute, 0, size),)
    limit = size * run.recompute_quarters // 4
    return (("full", 0, limit), ("none", limit, size))


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


def group_ends(stage: PipelineStage, instants: Instants, *, every: bool) -> frozenset[str]:
    """Names of the instants at which the lowest layer of a group of equal ones runs backward."""

    def lowest(index: int) -> bool:
        below, group = stage.blocks[index - 1], stage.blocks[index]
        return index == 0 or (below.layer, below.recompute) != (group.layer, group.recompute)

    return frozenset(
        i.name
        for i in instants
        if i.instant.layer == FIRST or (every and i.instant.layer == LAST and lowest(i.stretch))
    )


def stage_layers(run: Run) -> list[int]:
    """The number of layers of every stage."""
    pp = int(run.mesh.pp)
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
