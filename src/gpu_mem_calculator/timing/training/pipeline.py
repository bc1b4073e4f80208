"""The time of a pipeline: 1F1B and interleaving.

megatron-core 0.19.2 pipeline_parallel/schedules.py.

A step of m micro-batches takes m times the slowest stage, and what the first micro-batch takes to
come to it and the last one to leave: the other stages once, divided by the chunks of a stage.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import Num, ceil_div, choose, larger, smaller, take
from ...run.run import Run
from .operators import EqualLayers
from .step_seconds import Seconds, difference, summed


class Stages(Struct, frozen=True):
    """Layers of each kind on stages that may be the slowest: the first, one between, the last."""

    first: tuple[Num, ...]
    middle: tuple[Num, ...]
    last: tuple[Num, ...]


def stages(run: Run, kinds: tuple[EqualLayers, ...]) -> Stages:
    """The layers of the first, of a middle and of the last stage; embedding and loss may count as
    layers of theirs.
    """
    if run.stage_counts:
        return _given_stages(run, kinds)
    total, pp = len(run.arch.layers), run.mesh.pp
    embedding, loss = run.ends_counted
    size = ceil_div(total + embedding + loss, pp)

    def counts(stage: Num) -> tuple[Num, ...]:
        low = larger(smaller(stage * size - embedding, total), 0)
        high = smaller((stage + 1) * size - embedding, total)
        return tuple(take(kind.before, high) - take(kind.before, low) for kind in kinds)

    return Stages(counts(0 * pp), counts(pp // 2), counts(pp - 1))


def _given_stages(run: Run, kinds: tuple[EqualLayers, ...]) -> Stages:
    """Stages whose layers the run lists, chunk by chunk; the longest of those between."""
    pp = int(run.mesh.pp)
    held: list[list[int]] = [[0] * len(kinds) for _ in range(pp)]
    at = 0
    for row in run.stage_counts:
        for stage, count in enumerate(row):
            for index, kind in enumerate(kinds):
                held[stage][index] += kind.before[at + count] - kind.before[at]
            at += count
    between = held[1:-1] or held[:1]
    longest = max(range(len(between)), key=lambda stage: sum(between[stage]))
    return Stages(tuple(held[0]), tuple(between[longest]), tuple(held[-1]))


def weighted(counts: tuple[Num, ...], values: tuple[Seconds, ...]) -> Seconds:
    """The sum of a value of each kind of layer times how many there are."""
    return summed(value * count for count, value in zip(counts, values, strict=True))


def slowest(
    run: Run, where: Stages, layers: tuple[Seconds, ...], embedding: Seconds, head: Seconds
) -> Seconds:
    """The seconds of the slowest stage: with the embedding, with the head, or between them; all of
    them together where there is one stage.
    """
    first = weighted(where.first, layers) + embedding
    last = weighted(where.last, layers) + head
    middle = weighted(where.middle, layers)
    several = larger(larger(first, last), middle)
    return choose(run.mesh.pp == 1, first + head, several)


def bubble(run: Run, total: Seconds, slow: Seconds) -> Seconds:
    """Seconds in which the slowest stage waits; `total`: of all stages for one micro-batch."""
    return difference(total, slow) / run.virtual_stages


def sent(run: Run, seconds: Seconds) -> tuple[Seconds, Seconds]:
    """(seconds for each micro-batch, seconds once a step) in which a stage waits for activations.

    1F1B sends and receives in turn with its passes, twice for each micro-batch. Interleaving sends
    while other chunks run. The first and the last micro-batch cross every boundary.
    """
    each = choose(run.virtual_stages > 1, 0, 2) * seconds
    return each, seconds * (2 * (run.mesh.pp - 1))
