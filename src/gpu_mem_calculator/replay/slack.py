"""The most by which blocks can exceed the bytes requested, by the allocator's rules.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (round_size, should_split, get_free_block).
"""

from __future__ import annotations

from .plan import ReplayPlan
from .rounding import ROUND_LARGE, UNIT
from .settings import AllocatorSettings
from .stream import AllocationStream


def slack_bytes(stream: AllocationStream, settings: AllocatorSettings) -> int:
    """The most bytes by which live blocks can exceed their tensors after start-up.

    Start-up ends at the first mark. `allocated - requested` is never more at any event.
    """
    slack = _tensor_slack(ReplayPlan(stream, settings), stream.sizes)
    begin = stream.marks[0][0]
    alive = sum(slack[event] if event >= 0 else -slack[~event] for event in stream.events[:begin])
    most = alive
    for event in stream.events[begin:]:
        if event >= 0:
            alive += slack[event]
            most = max(most, alive)
        else:
            alive -= slack[~event]
    return most


def _tensor_slack(plan: ReplayPlan, sizes: list[int]) -> list[int]:
    """The most bytes by which the block of each tensor can exceed it.

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
        for units, pool_index, size in zip(plan.units, plan.pool_of, sizes, strict=True)
    ]
