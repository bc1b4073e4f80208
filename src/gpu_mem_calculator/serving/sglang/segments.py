"""What torch's allocator takes from the driver for tensors that stay: more than their bytes.

c10/cuda/CUDACachingAllocator.cpp (torch 2.11): up to 1 MiB from segments of 2 MiB; below 10 MiB
from segments of 20 MiB; larger ones have their own, in whole steps of 2 MiB. What is left of a
segment serves the next tensor that fits, the smallest rest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from ...ledger.num import round_up
from ...ledger.units import MIB

BLOCK, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE, MIDDLE_SEGMENT, STEP = 10 * MIB, 20 * MIB, 2 * MIB


def segment_bytes(size: int) -> int:
    """The segment that is made for a tensor which fits nowhere."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return MIDDLE_SEGMENT if size < LARGE else int(round_up(size, STEP))


def reserved_bytes(sizes: Iterable[int]) -> int:
    """Segments for tensors that are made one after the other and never freed."""
    total = 0
    rests: dict[bool, list[int]] = {True: [], False: []}  # of small segments, and of the others
    for size in sizes:
        taken = max(BLOCK, int(round_up(size, BLOCK)))
        small = taken <= SMALL
        free = rests[small]
        place = bisect_left(free, taken)
        if place < len(free):
            left = free.pop(place) - taken
        else:
            segment = segment_bytes(taken)
            total += segment
            left = segment - taken
        if left >= BLOCK if small else left > SMALL:
            insort(free, left)
    return total
