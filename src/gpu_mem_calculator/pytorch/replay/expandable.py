"""`expandable_segments:True`: one segment for each pool and CUDA stream, mapped page by page.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (get_free_block, find_expandable_block,
map_block, try_allocate_expandable_block, unmap_block, release_blocks). Pages have 2 MiB in the
small pool and 20 MiB (`large_segment_size_mb`) in the large one.
"""

from __future__ import annotations

from bisect import insort
from itertools import count

from .blocks import ADDRESS, SHIFT, SPAN
from .cache import AllocatorState
from .rounding import SMALL_SEGMENT


def best_fit(pool: list[int], index: int, unmapped: dict[int, int]) -> tuple[int, int]:
    """The block to use, among those from `index` on, and its index: a block that can grow counts
    with the size it can grow to.
    """
    block = pool[index]
    end = (block & ADDRESS) + (block >> SHIFT)
    while end in unmapped and index + 1 < len(pool):
        after = pool[index + 1]
        next_end = (after & ADDRESS) + (after >> SHIFT)
        grown = (after >> SHIFT) + unmapped.get(next_end, 0)
        if grown >= (block >> SHIFT) + unmapped[end]:
            break
        index, block, end = index + 1, after, next_end
    return block, index


def expand(cache: AllocatorState, pool_index: int, need: int) -> int:
    """A free block of at least `need` units, made by mapping pages and removed from its pool."""
    start = _lowest_start(cache, pool_index, need)
    block = cache.starts.get(start, 0)
    while block >> SHIFT < need:
        gap = start + (block >> SHIFT)
        size = min(need - (block >> SHIFT), cache.unmapped[gap])
        _map(cache, pool_index, gap, size)
        block = cache.starts[start]
    cache.remove(pool_index, block)
    return block


def missing_pages(cache: AllocatorState, pool_index: int, need: int) -> int:
    """Units of the pages that `expand` would map."""
    start, page = _lowest_start(cache, pool_index, need), _page(cache, pool_index)
    end, missing = start, 0
    while (left := need - (end - start)) > 0:
        if end in cache.unmapped:
            pages = min(-(-left // page) * page, cache.unmapped[end])
            end, missing = end + pages, missing + pages
        else:
            end += cache.starts[end] >> SHIFT
    return missing


def _lowest_start(cache: AllocatorState, pool_index: int, need: int) -> int:
    """The lowest address from which adjacent free and unmapped ranges have `need` units in all."""
    for gap in cache.gaps[pool_index]:
        before = cache.ends.get(gap)
        start = end = gap if before is None else before & ADDRESS
        while end - start < need:
            if end in cache.unmapped:
                end += cache.unmapped[end]
            elif end in cache.starts:
                end += cache.starts[end] >> SHIFT
            else:
                break
        if end - start >= need:
            return start
    start = _new_address(cache)
    _add_gap(cache, pool_index, start, SPAN)
    return start


def _new_address(cache: AllocatorState) -> int:
    """The address of a new segment: above all so far, else the lowest that none has. A segment in
    use has an unmapped range, since none maps all of its span.
    """
    cache.num_segments += 1
    number = cache.num_segments
    if number * 2 * SPAN > ADDRESS:
        used = {gap // (2 * SPAN) for gap in cache.unmapped}
        number = next(n for n in count(1) if n not in used)
    return number * 2 * SPAN


def _map(cache: AllocatorState, pool_index: int, gap: int, size: int) -> None:
    """Map the pages of `size` units from the start of an unmapped range."""
    page = _page(cache, pool_index)
    size = -(-size // page) * page
    gap_size = cache.unmapped.pop(gap)
    cache.gaps[pool_index].remove(gap)
    size = min(size, gap_size)
    if gap_size > size:
        _add_gap(cache, pool_index, gap + size, gap_size - size)
    cache.insert_merged(pool_index, gap, size)
    cache.reserve(size)


def unmap_free(cache: AllocatorState, pool_index: int) -> None:
    """Unmap every page of a pool without a block in use."""
    page = _page(cache, pool_index)
    for block in tuple(cache.pools[pool_index]):
        start, units = block & ADDRESS, block >> SHIFT
        base = start - start % (2 * SPAN)
        first = base + -(-(start - base) // page) * page
        last = base + (start + units - base) // page * page
        if first >= last:
            continue
        cache.remove(pool_index, block)
        if first > start:
            cache.insert(pool_index, start, first - start)
        if start + units > last:
            cache.insert(pool_index, last, start + units - last)
        cache.reserved -= last - first
        _join_gap(cache, pool_index, first, last - first)


def _join_gap(cache: AllocatorState, pool_index: int, start: int, units: int) -> None:
    """Add an unmapped range, merged with adjacent ones; drop a segment that is wholly unmapped."""
    for other in tuple(cache.gaps[pool_index]):
        more = cache.unmapped[other]
        if other + more == start or other == start + units:
            del cache.unmapped[other]
            cache.gaps[pool_index].remove(other)
            start, units = min(start, other), units + more
    if units < SPAN:
        _add_gap(cache, pool_index, start, units)


def _add_gap(cache: AllocatorState, pool_index: int, start: int, units: int) -> None:
    cache.unmapped[start] = units
    insort(cache.gaps[pool_index], start)


def _page(cache: AllocatorState, pool_index: int) -> int:
    """Units of a page: 2 MiB in the small pool, 20 MiB in the large one."""
    return SMALL_SEGMENT if pool_index % 2 else cache.plan.large_segment
