"""The most by which blocks can exceed the bytes requested, by the allocator's rules.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (round_size, should_split, get_free_block).
"""

from __future__ import annotations

from collections.abc import Sequence

from .plan import ReplayPlan
from .rounding import ROUND_LARGE, UNIT
from .stream import AllocationStream


def slack_bytes(stream: AllocationStream, plan: ReplayPlan) -> int:
    """The most bytes by which live blocks can exceed their tensors after start-up.

    Start-up ends at the first mark. `allocated - requested` is never more at any event.
    """
    slack = _tensor_slack(plan, stream.sizes)
    begin, _ = stream.marks[0]
    most = alive = slack_at_start(stream, plan)
    for event in stream.events[begin:]:
        if event >= 0:
            alive += slack[event]
            most = max(most, alive)
        else:
            alive -= slack[~event]
    return most


def slack_at_start(stream: AllocationStream, plan: ReplayPlan) -> int:
    """The most bytes by which the blocks alive at the end of start-up can exceed their tensors."""
    begin, _ = stream.marks[0]
    events = stream.events[:begin]
    slack = _tensor_slack(plan, stream.sizes[: max(events, default=-1) + 1])
    return sum(slack[event] if event >= 0 else -slack[~event] for event in events)


def _tensor_slack(plan: ReplayPlan, sizes: Sequence[int]) -> list[int]:
    """The most bytes by which the block of each of the first tensors, of `sizes`, can exceed it.

    The request is rounded up to a block. A larger block is split unless the rest is at most
    `least_rest` (1 MiB in the large pool, 0 in the small one or in expandable segments).
    With `max_split_size_mb` a block of that size or more is never split: a free one is used when
    it is less than `max_non_split_rounding_mb` larger, a new segment is rounded up to 2 MiB.
    """
    unsplit = max(plan.rounding, ROUND_LARGE) - 1
    return [
        (units + (plan.least_rest[pool_index] if units < plan.unsplit else unsplit)) * UNIT - size
        if size
        else 0
        for units, pool_index, size in zip(plan.units, plan.pool_of, sizes, strict=False)
    ]
