"""Chunks of a pipeline stage: their layers, and how many of their passes are alive.

megatron-core 0.19.2 pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num, choose, larger, smaller
from ..model.arch import Layer
from ..run.run import Run
from .instants import in_flight


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


def schedule(micro_batches: int, chunks: int, group: int) -> list[tuple[int, int]]:
    """Chunk and micro-batch of each forward pass in order (schedules.py get_schedule_table)."""
    return [
        (chunk, batch)
        for start in range(0, micro_batches, group)
        for chunk in range(chunks)
        for batch in range(start, min(start + group, micro_batches))
    ]


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
    """A moment of an interleaved stage: the chunk that runs backward, and the passes of each chunk
    that are alive.
    """

    chunk: int
    alive: tuple[int, ...]


def stage_moments(run: Run) -> tuple[StageMoment, ...]:
    """The moments of the schedule of which one may have the peak; none where chunks are equal, and
    passes of the chunk with the loss do not wait for each other.

    Each forward after the warm-up is followed by the backward of the oldest pass, chunks in reverse
    order (schedules.py get_model_chunk_id).
    """
    if not (run.stage_counts or _losses_wait(run)):
        return ()
    chunks, batches = int(run.virtual_stages), int(run.micro_batches)
    group = int(run.micro_batch_group or run.mesh.pp)
    flight = int(chunks_in_flight(run.mesh.pp, run.stage, batches, chunks, group))

    def passes(count: int) -> list[int]:
        return [int(chunk_passes(count, group, chunks, c, batches)) for c in range(chunks)]

    after, cycles = batches * chunks - flight, 2 * group * chunks
    moments = set()
    for done in {*range(min(after, cycles) + 1), *range(max(after - cycles, 0), after + 1)}:
        begun, ended, following = passes(flight + done), passes(done)[::-1], passes(done + 1)[::-1]
        alive = tuple(a - b for a, b in zip(begun, ended, strict=True))
        moments.add(StageMoment(next(c for c in range(chunks) if following[c] > ended[c]), alive))
    return tuple(m for m in sorted(moments, key=_order) if not any(_exceeds(n, m) for n in moments))


def _losses_wait(run: Run) -> bool:
    """Whether the last group is smaller than the others: then the last stage begins its loss while
    those of other micro-batches wait for their backward.
    """
    sizes = (run.virtual_stages, run.micro_batches, run.stage, run.mesh.pp)
    if not all(isinstance(size, int) for size in sizes) or run.virtual_stages == 1:
        return False
    group = run.micro_batch_group or run.mesh.pp
    return bool(run.stage == run.mesh.pp - 1 and run.micro_batches % group)


def _order(moment: StageMoment) -> tuple[int, tuple[int, ...]]:
    return moment.chunk, moment.alive


def _exceeds(one: StageMoment, other: StageMoment) -> bool:
    """Whether one moment has all that another has, and more."""
    more = all(a >= b for a, b in zip(one.alive, other.alive, strict=True))
    return more and one.chunk == other.chunk and one != other


def chunk_layers(run: Run, chunk: int) -> tuple[Layer, ...]:
    """The layers of one chunk of the run's stage (for one run, not for arrays)."""
    low, size = chunk_range(run, chunk)
    return tuple(run.arch.layers[int(low) : int(low + size)])
