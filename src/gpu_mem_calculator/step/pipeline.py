"""Pipeline stages: which layers each has, and how many micro-batches wait on it.

megatron-core 0.19.2 pipeline_parallel/schedules.py. With interleaving a rank has several chunks
of the model: chunk c of stage p has n = layers / (pp × chunks) layers from (c × pp + p) × n on.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ..autograd.walk import BlockWalk
from ..ledger.ledger import ACT, FIRST, IN_FLIGHT, INPUTS_IN_FLIGHT, LAST, Entry, Instant
from ..ledger.num import Num, choose, holds, larger, nothing, smaller
from ..ledger.source import Source
from ..model.arch import Layer
from ..run.phases import OPTIMIZER, STARTUP
from ..run.run import Run
from .instants import StepInstant, in_flight, step
from .layer_groups import LayerGroup, blocks, overlap


class PipelineStage(Struct, frozen=True, kw_only=True):
    """One stage: its stretches of equal layers, and what is in flight when it is fullest.

    For each block, `held` counts the layers of the stage, `opening` those of its first chunk,
    `working` those of the last, which runs backward first, and `waiting` the layers whose
    activations wait meanwhile. `flight` counts forward passes (of a chunk) whose activations are
    alive.
    """

    blocks: tuple[LayerGroup, ...]
    held: tuple[Num, ...]
    opening: tuple[Num, ...]
    working: tuple[Num, ...]
    waiting: tuple[Num, ...]
    flight: Num
    first: Num  # 1 where the stage has the embedding
    last: Num  # 1 where it has the loss


def chunks_in_flight(pp: Num, stage: Num, micro_batches: Num, chunks: Num) -> Num:
    """Forward passes that wait for their backward.

    1F1B: min(pp - stage, m) (schedules.py:2243). Interleaved: 2 (pp - stage - 1) warm-up passes
    more than (chunks - 1) × pp, and the one that runs (schedules.py:937-950).
    """
    warm = (pp - stage - 1) * 2 + (chunks - 1) * pp + 1
    woven = smaller(warm, micro_batches * chunks)
    return choose(chunks > 1, woven, in_flight(pp, stage, micro_batches))


def chunk_flight(flight: Num, pp: Num, chunks: Num, chunk: int) -> Num:
    """How many of the passes in flight belong to one chunk: they come pp at a time."""
    turn = pp * chunks
    rest = larger(flight % turn - chunk * pp, 0)
    return flight // turn * pp + smaller(rest, pp)


def stage_of(run: Run) -> PipelineStage:
    """The layers and micro-batches of the run's stage."""
    pp, at, chunks = run.mesh.pp, run.stage, run.virtual_stages
    size = len(run.arch.layers) // (pp * chunks)
    flight = chunks_in_flight(pp, at, run.micro_batches, chunks)
    found: list[tuple[LayerGroup, Num, Num, Num, Num]] = []
    first = 0
    for kind in blocks(replace(run, recompute="none"), 0, len(run.arch.layers)):
        for policy, start, end in _policies(run, size):
            held: Num = 0
            low_end: Num = 0
            top: Num = 0
            alive: Num = 0
            for chunk in range(_most(chunks)):
                low = (chunk * pp + at) * size
                here = overlap(first, kind.count, low + start, low + end) * holds(chunk < chunks)
                held = held + here
                low_end = here if chunk == 0 else low_end
                top = top + here * holds(chunk == chunks - 1)
                alive = alive + here * chunk_flight(flight, pp, chunks, chunk)
            if not nothing(held):
                block = replace(kind, count=top, recompute=policy, reentrant=policy == "full")
                found.append((block, held, low_end, top, alive - top))
        first += kind.count
    rows = tuple(zip(*found, strict=True))
    return PipelineStage(
        blocks=rows[0], held=rows[1], opening=rows[2], working=rows[3], waiting=rows[4],
        flight=flight, first=holds(at == 0), last=holds(at == pp - 1),
    )  # fmt: skip


def chunk_layers(run: Run, chunk: int) -> tuple[Layer, ...]:
    """The layers of one chunk of the run's stage (one run, no arrays)."""
    pp, at, chunks = int(run.mesh.pp), int(run.stage), int(run.virtual_stages)
    size = len(run.arch.layers) // (pp * chunks)
    low = (chunk * pp + at) * size
    return tuple(run.arch.layers[low : low + size])


def _policies(run: Run, size: Num) -> tuple[tuple[str, Num, Num], ...]:
    """(recompute, from, to) within a chunk: `block` recomputes a chunk's first layers."""
    if run.recompute != "full" or run.recompute_quarters == 4:
        return ((run.recompute, 0, size),)
    limit = size * run.recompute_quarters // 4
    return (("full", 0, limit), ("none", limit, size))


def _most(chunks: Num) -> int:
    """The largest number of chunks, of one run or of many."""
    return int(chunks.max()) if hasattr(chunks, "max") else int(chunks)


def beats(
    stage: PipelineStage, startup: tuple[tuple[str, str], ...], *, every: bool = False
) -> tuple[StepInstant, ...]:
    """The instants of start-up, (name, title) each, then of a step with everything in flight.

    `every`: forward has one for each block of an unrolled run.
    """
    nothing = tuple(0 for _ in stage.blocks)
    begun = tuple(
        StepInstant(instant=Instant(name=n, phase=STARTUP, title=t), saved=nothing, grads=nothing)
        for n, t in startup
    )
    stretches = tuple(b.stretch for b in stage.blocks)
    return begun + tuple(
        _with_waiting(beat, stage)
        for beat in step(stretches, head=stage.last, embedding=stage.first, every=every)
    )


def _with_waiting(beat: StepInstant, stage: PipelineStage) -> StepInstant:
    if beat.instant.phase == OPTIMIZER:
        return beat
    saved = tuple(a + b for a, b in zip(beat.saved, stage.waiting, strict=True))
    if beat.work != "layer":
        return replace(beat, saved=saved)
    here = beat.instant.present * holds(stage.working[beat.stretch] > 0)
    return replace(beat, saved=saved, instant=replace(beat.instant, present=here))


def stretch_ends(
    stage: PipelineStage, beats: tuple[StepInstant, ...], *, every: bool
) -> frozenset[str]:
    """The beats at which the lowest layer of a stretch of equal ones runs backward."""

    def lowest(index: int) -> bool:
        above, here = stage.blocks[index - 1], stage.blocks[index]
        return index == 0 or (above.layer, above.recompute) != (here.layer, here.recompute)

    return frozenset(
        b.name for b in beats
        if b.instant.layer == FIRST or (every and b.instant.layer == LAST and lowest(b.stretch))
    )  # fmt: skip


def stage_layers(run: Run) -> list[int]:
    """Layers of every stage."""
    pp = int(run.mesh.pp)
    return [len(run.arch.layers) // pp] * pp


def waiting_entries(
    index: int,
    block: LayerGroup,
    walk: BlockWalk,
    beats: tuple[StepInstant, ...],
    kept: Source,
    checkpoint: Source,
) -> Iterator[Entry]:
    """What other micro-batches in flight keep, beside the one whose blocks play their scripts.

    `kept` is the source of what a layer keeps, `checkpoint` of what a checkpointed one does.
    """

    def own(b: StepInstant) -> int:
        runs = block.count and (b.work == "head" or (b.work == "layer" and index < b.stretch))
        return int(bool(runs))

    live = {b.name: b.saved[index] - own(b) for b in beats if b.saved[index] > own(b)}
    if not live:
        return
    full = block.recompute == "full"
    sizes = (walk.input_bytes,) if full else tuple(size for _, size in walk.saved)
    yield Entry(
        name=f"{block.title}: kept by micro-batches in flight", kind=ACT, bytes=sum(sizes),
        live=live, source=checkpoint if full else kept, tensors=lambda: sizes,
        role=INPUTS_IN_FLIGHT if full else IN_FLIGHT,
    )  # fmt: skip
