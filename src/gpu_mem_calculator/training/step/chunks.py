"""Chunks of a pipeline stage: their layers, and how many of their passes are alive.

megatron-core 0.19.2 pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import SINGLE, Num, choose, holds, larger, largest, smaller
from ...ledger.remember import remembered
from ...models.arch.arch import Layer
from ...run.run import Run
from .instants import in_flight
from .layer_groups import equal_layers


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
    embedding, loss = run.ends_counted
    parts, part = pp * run.virtual_stages, chunk * pp + stage
    size = (len(run.arch.layers) + embedding + loss) // parts
    if not (embedding or loss):
        return part * size, size
    shorter = embedding * holds(part == 0) + loss * holds(part == parts - 1)
    return part * size - embedding * holds(part > 0), size - shorter


Moment = tuple[int, tuple[int, ...]]  # the fields of a `StageMoment` of one run


class StageMoment(Struct, frozen=True):
    """A moment of an interleaved stage: the chunk that runs backward, and the passes of each chunk
    that are alive.
    """

    chunk: Num
    alive: tuple[Num, ...]

    def of_chunk(self, chunk: Num) -> Num:
        """The passes of one chunk that are alive."""
        passes: Num = 0
        for index, alive in enumerate(self.alive):
            passes = passes + alive * holds(chunk == index)
        return passes


def stage_moments(run: Run) -> tuple[StageMoment, ...]:
    """The moments of the schedule of which one may have the peak; none where chunks are equal, and
    passes of the chunk with the loss do not wait for each other.

    Each forward after the warm-up is followed by the backward of the oldest pass, chunks in reverse
    order (schedules.py get_model_chunk_id).
    """
    if isinstance(run.virtual_stages, SINGLE) and run.virtual_stages == 1:
        return ()
    if not (run.stage_counts or any(run.ends_counted) or _losses_wait(run)):
        return ()
    sizes = (run.mesh.pp, run.stage, run.micro_batches, run.virtual_stages)
    if not all(isinstance(size, SINGLE) for size in sizes):
        return _array_moments(run)
    chunks, batches = int(run.virtual_stages), int(run.micro_batches)
    group = int(run.micro_batch_group or run.mesh.pp)
    flight = int(chunks_in_flight(run.mesh.pp, run.stage, batches, chunks, group))

    moments = walked_moments(flight, batches, chunks, group)
    return tuple(StageMoment(*moment) for moment in _highest(run, list(moments)))


@remembered(64)
def walked_moments(flight: int, batches: int, chunks: int, group: int) -> tuple[Moment, ...]:
    """The different moments of a schedule with `flight` passes alive; those between the first and
    the last two cycles are like those before them.
    """

    def chunk_of(number: int) -> int:
        cycle, place = divmod(number, group * chunks)
        return place // min(batches - cycle * group, group)

    def passes(count: int) -> list[int]:
        return [int(chunk_passes(count, group, chunks, c, batches)) for c in range(chunks)]

    after, cycles = batches * chunks - flight, 2 * group * chunks
    moments: set[Moment] = set()
    for begin, end in ((0, min(after, cycles)), (max(after - cycles, 0), after)):
        alive = [a - b for a, b in zip(passes(flight + begin), passes(begin)[::-1], strict=True)]
        for done in range(begin, end + 1):
            running = chunks - 1 - chunk_of(done)
            moments.add((running, tuple(alive)))
            alive[running] -= 1
            if done < after:
                alive[chunk_of(flight + done)] += 1
    return tuple(sorted(moments))


def _highest(run: Run, moments: list[Moment]) -> list[Moment]:
    """Those moments of which one may have the peak: no other has all that they have, and more."""
    if equal_layers(run):
        moments = _distinct(run, moments)
    return [m for m in moments if not any(_exceeds(n, m) for n in moments)]


def _distinct(run: Run, moments: list[Moment]) -> list[Moment]:
    """Of moments that hold as many layers and losses while a chunk of one size runs, the first;
    all layers are equal.
    """
    chunks, last = int(run.virtual_stages), run.stage == run.mesh.pp - 1
    sizes = [int(chunk_range(run, chunk)[1]) for chunk in range(chunks)]
    found: dict[tuple[int, ...], Moment] = {}
    for running, alive in moments:
        layers = sum(a * n for a, n in zip(alive, sizes, strict=True))
        ends = (running == 0, running == chunks - 1, alive[-1] if last else 0)
        found.setdefault((sizes[running], *map(int, ends), layers), (running, alive))
    most: dict[tuple[int, ...], int] = {}
    for *kind, layers in found:
        most[tuple(kind)] = max(most.get(tuple(kind), 0), layers)
    return [moment for key, moment in found.items() if key[-1] == most[key[:-1]]]


def _array_moments(run: Run) -> tuple[StageMoment, ...]:
    """The two moments of `stage_moments` for arrays of runs whose layers are all equal, whose
    embedding and loss count as layers, and whose micro-batches are a multiple of the stages.

    On the first stage the last chunk, then the first one runs while fewest passes of the first
    chunk, which has a layer less, are alive: 2 pp - 1. On the last stage one loss waits while the
    last chunk runs, none while another does. With pp micro-batches all are in flight at once.
    """
    assert all(run.ends_counted)
    assert len(run.arch.runs) == 1
    pp, stage, chunks, batches = run.mesh.pp, run.stage, run.virtual_stages, run.micro_batches
    flight = chunks_in_flight(pp, stage, batches, chunks, pp)
    most = largest(chunks)
    several = holds(chunks > 1)
    ending = holds(stage == pp - 1) * several
    steady = holds(batches > pp) * several
    usual = [chunk_passes(flight, pp, chunks, c, batches) for c in range(most)]
    first_runs = steady * (1 - holds(stage > 0) * holds(stage < pp - 1))
    moved = ending * first_runs  # a pass of the last chunk is a pass of the first one instead
    other = [
        alive + moved * (int(c == 0) - holds(c == chunks - 1)) for c, alive in enumerate(usual)
    ]
    last = chunks - 1
    return (
        StageMoment(last, tuple(usual)),
        StageMoment(choose(first_runs > 0, 0 * last, last), tuple(other)),
    )


def _losses_wait(run: Run) -> bool:
    """Whether the last group is smaller than the others: then the last stage begins its loss while
    those of other micro-batches wait for their backward.
    """
    sizes = (run.virtual_stages, run.micro_batches, run.stage, run.mesh.pp)
    if not all(isinstance(size, int) for size in sizes) or run.virtual_stages == 1:
        return False
    group = run.micro_batch_group or run.mesh.pp
    return bool(run.stage == run.mesh.pp - 1 and run.micro_batches % group)


def _exceeds(one: Moment, other: Moment) -> bool:
    """Whether one moment has all that another has, and more."""
    more = all(a >= b for a, b in zip(one[1], other[1], strict=True))
    return more and one[0] == other[0] and one != other


def chunk_layers(run: Run, chunk: int) -> tuple[Layer, ...]:
    """The layers of one chunk of the run's stage (for one run, not for arrays)."""
    low, size = chunk_range(run, chunk)
    return tuple(run.arch.layers[int(low) : int(low + size)])
