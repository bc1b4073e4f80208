"""The most by which blocks can exceed the bytes requested, by the allocator's rules.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (round_size, should_split, get_free_block).
"""

from __future__ import annotations

from collections.abc import Iterable

from .plan import ReplayPlan
from .rounding import ROUND_LARGE, SMALL, UNIT, round_units
from .stream import AllocationStream


def slack_bytes(stream: AllocationStream, plan: ReplayPlan) -> int:
    """The most bytes by which live blocks can exceed their tensors after start-up.

    Start-up ends at the first mark. `allocated - requested` is never more at any event.
    """
    begin, _ = stream.marks[0]
    if plan.native:
        return plan.native.most_slack(begin)
    sizes, slack = stream.sizes, _slack_of_sizes(plan, stream.sizes)
    most = alive = slack_at_start(stream, plan)
    for event in stream.events[begin:]:
        if event >= 0:
            alive += slack[sizes[event]]
            most = max(most, alive)
        else:
            alive -= slack[sizes[~event]]
    return most


def slack_at_start(stream: AllocationStream, plan: ReplayPlan) -> int:
    """The most bytes by which the blocks alive at the end of start-up can exceed their tensors."""
    begin, _ = stream.marks[0]
    events, sizes = stream.events[:begin], stream.sizes
    slack = _slack_of_sizes(plan, [sizes[event] for event in events if event >= 0])
    return sum(slack[sizes[event]] if event >= 0 else -slack[sizes[~event]] for event in events)


def _slack_of_sizes(plan: ReplayPlan, sizes: Iterable[int]) -> dict[int, int]:
    """For each size of a tensor, the most bytes by which its block can exceed it.

    The request is rounded up to a block. A larger block is split unless the rest is at most 1 MiB
    in the large pool, 0 in the small one or in expandable segments.
    With `max_split_size_mb` a block of that size or more is never split: a free one is used when
    it is less than `max_non_split_rounding_mb` larger, a new segment is rounded up to 2 MiB.
    """
    unsplit = max(plan.rounding, ROUND_LARGE) - 1
    slack = {0: 0}
    for size in {*sizes} - {0}:
        units = round_units(size, plan.settings)
        rest = 0 if units <= SMALL else plan.least_rest_of_large
        slack[size] = (units + (rest if units < plan.unsplit else unsplit)) * UNIT - size
    return slack
