"""When no free block fits: a new segment, and what is released first where a cap does not allow it.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (malloc, alloc_block,
garbage_collect_cached_blocks, release_available_cached_blocks, release_cached_blocks).
"""

from __future__ import annotations

from .blocks import ADDRESS, NEVER, SHIFT, SPREAD
from .cache import AllocatorState
from .expandable import expand, missing_pages, unmap_free
from .rounding import LEAST_OWN_SEGMENT, ROUND_LARGE, SMALL_SEGMENT, UNIT, segment_units


def grow(cache: AllocatorState, tensor: int) -> int:
    """A block for a tensor that no free block fits, in no pool; 0 when out of memory."""
    plan = cache.plan
    need, pool_index = plan.units[tensor], plan.pool_of[tensor]
    cache.segment_changes += 1
    if cache.ages is not None:
        collect_garbage(cache)
    size = _missing(cache, pool_index, need)
    if cache.reserved + size > cache.cap:
        if cache.waits:
            return 0
        cache.least_over = min(cache.least_over, cache.reserved + size)
        if not release_available(cache, pool_index, need) or _over(cache, size):
            release_cached(cache)
            cache.retries += 1
            size = _missing(cache, pool_index, need)
            if not cache.elastic and _over(cache, size):
                return 0
            cache.cap = max(cache.cap, cache.reserved + size)
    cache.most_under = max(cache.most_under, cache.reserved + size)
    if plan.settings.expandable_segments:
        return expand(cache, pool_index, need)
    start = cache.addresses.take(-(-size // ROUND_LARGE)) * SPREAD
    cache.segments[start] = size
    cache.reserve(size)
    return size << SHIFT | start


def _missing(cache: AllocatorState, pool_index: int, need: int) -> int:
    """Units that the driver has to allocate for a request: a segment, or pages of one."""
    if cache.plan.maps_pages:
        return missing_pages(cache, pool_index, need)
    return segment_units(need, cache.plan.large_segment)


def _over(cache: AllocatorState, size: int) -> bool:
    """Whether `size` more units would exceed the cap; what they would reserve is remembered."""
    reserved = cache.reserved + size
    if reserved > cache.cap:
        cache.least_over = min(cache.least_over, reserved)
    return reserved > cache.cap


def release(cache: AllocatorState, pool_index: int, block: int) -> None:
    """Return a free block that is a whole segment to the driver (release_block)."""
    cache.remove(pool_index, block)
    start = block & ADDRESS
    size = cache.segments.pop(start)
    cache.addresses.give_back(start // SPREAD, -(-size // ROUND_LARGE))
    cache.reserved -= size


def release_available(cache: AllocatorState, pool_index: int, need: int) -> bool:
    """Release one oversize block that is large enough, else the largest ones until they are enough.

    Only with `max_split_size_mb`; returns whether enough was released.
    """
    oversize = cache.plan.oversize
    if oversize == NEVER or cache.plan.settings.expandable_segments:
        return False
    need = max(need, oversize)
    enough = cache.free_blocks(pool_index, need)
    if enough:
        release(cache, pool_index, enough[0])
        return True
    released = 0
    for block in reversed(cache.free_blocks(pool_index, oversize)):
        if released >= need:
            break
        released += block >> SHIFT
        release(cache, pool_index, block)
    return released >= need


def whole_segments(cache: AllocatorState, pool_index: int) -> list[int]:
    """The free blocks of a pool that are whole segments from cudaMalloc, not split ones."""
    size, least = cache.segments.get, SMALL_SEGMENT if pool_index % 2 else LEAST_OWN_SEGMENT
    blocks = cache.free_blocks(pool_index, least)
    return [block for block in blocks if size(block & ADDRESS) == block >> SHIFT]


def release_cached(cache: AllocatorState) -> None:
    """Wait for all CUDA streams, then release every segment that is not in use."""
    cache.segment_changes += 1
    cache.free_kept(NEVER)
    for first in (0, 1):  # the large pools, then the small ones
        for pool_index in range(first, cache.plan.num_pools, 2):
            if cache.plan.settings.expandable_segments:
                unmap_free(cache, pool_index)
            for block in whole_segments(cache, pool_index):
                release(cache, pool_index, block)


def collect_garbage(cache: AllocatorState) -> None:
    """Above the threshold, release whole large segments that were unused for at least the average
    time, and repeat until reserved memory is below it.
    """
    threshold = int(cache.plan.settings.garbage_collection_threshold * cache.cap * UNIT) // UNIT
    target, ages = cache.reserved - threshold, cache.ages
    if target <= 0 or ages is None:
        return
    free = [
        (ages[block], pool_index, block)
        for pool_index in range(0, cache.plan.num_pools, 2)
        for block in whole_segments(cache, pool_index)
    ]
    while target > 0 and free:
        average = sum(since for since, _, _ in free) / len(free)
        for since, pool_index, block in free:
            if since <= average:
                target -= block >> SHIFT
                release(cache, pool_index, block)
        free = [entry for entry in free if entry[0] > average]
