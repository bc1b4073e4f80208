"""Segments that torch's allocator takes from the driver for tensors that are never freed.

c10/cuda/CUDACachingAllocator.cpp (torch 2.11): tensors up to 1 MiB come from segments of 2 MiB,
those below 10 MiB from segments of 20 MiB; a larger one has its segment alone, in whole steps of
2 MiB. The rest of a segment serves the next tensor that fits, the smallest rest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from ...ledger.num import round_up
from ...ledger.units import MIB

BLOCK, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE, MIDDLE_SEGMENT, STEP = 10 * MIB, 20 * MIB, 2 * MIB


def segment_bytes(size: int) -> int:
    """Bytes of the segment that is allocated for a tensor which fits into no rest."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return MIDDLE_SEGMENT if size < LARGE else int(round_up(size, STEP))


def reserved_bytes(sizes: Iterable[int]) -> int:
    """Bytes of the segments for tensors of `sizes`, allocated in that order and never freed."""
    total = 0
    rests: dict[bool, list[int]] = {True: [], False: []}  # of small segments, and of the others
    for size in sizes:
        block = max(BLOCK, int(round_up(size, BLOCK)))
        small = block <= SMALL
        free = rests[small]
        place = bisect_left(free, block)
        if place < len(free):
            left = free.pop(place) - block
        else:
            segment = segment_bytes(block)
            total += segment
            left = segment - block
        if left >= BLOCK if small else left > SMALL:
            insort(free, left)
    return total
