"""`expandable_segments:True`: one segment for each pool and stream, mapped page by page.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (get_free_block, find_expandable_block,
map_block, try_allocate_expandable_block, unmap_block, release_blocks). Pages have 2 MiB in the
small pool and 20 MiB (`large_segment_size_mb`) in the large one.
"""

from __future__ import annotations

from bisect import insort

from .blocks import ADDRESS, SHIFT
from .cache import AllocatorState
from .rounding import SMALL_SEGMENT

SPAN = 1 << 31
"""Units of address space of a segment, 1 TiB (torch: 9/8 of the card's memory): never full."""


def best_fit(pool: list[int], index: int, unmapped: dict[int, int]) -> tuple[int, int]:
    """The block to take from `index` on, and its index: a block that can grow counts as large as
    it can become.
    """
    block = pool[index]
    end = (block & ADDRESS) + (block >> SHIFT)
    while end in unmapped and index + 1 < len(pool):
        after = pool[index + 1]
        next_end = (after & ADDRESS) + (after >> SHIFT)
        room = (after >> SHIFT) + unmapped.get(next_end, 0)
        if room >= (block >> SHIFT) + unmapped[end]:
            break
        index, block, end = index + 1, after, next_end
    return block, index


def expand(cache: AllocatorState, home: int, need: int) -> int:
    """A free block of `need` units or more, made by mapping pages; taken out of its pool."""
    start = _lowest_room(cache, home, need)
    block = cache.starts.get(start, 0)
    while block >> SHIFT < need:
        gap = start + (block >> SHIFT)
        size = min(need - (block >> SHIFT), cache.unmapped[gap])
        _map(cache, home, gap, size)
        block = cache.starts[start]
    cache.remove(home, block)
    return block


def _lowest_room(cache: AllocatorState, home: int, need: int) -> int:
    """The lowest address from which free and unmapped ranges follow each other for `need` units."""
    for gap in cache.gaps[home]:
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
    cache.num_segments += 1
    start = cache.num_segments * 2 * SPAN
    _add_gap(cache, home, start, SPAN)
    return start


def _map(cache: AllocatorState, home: int, gap: int, size: int) -> None:
    """Map the pages that hold `size` units from the start of an unmapped range."""
    page = _page(cache, home)
    size = -(-size // page) * page
    room = cache.unmapped.pop(gap)
    cache.gaps[home].remove(gap)
    size = min(size, room)
    if room > size:
        _add_gap(cache, home, gap + size, room - size)
    cache.insert_merged(home, gap, size)
    cache.reserve(size)


def unmap_free(cache: AllocatorState, home: int) -> None:
    """Unmap every page of a pool that holds no block in use."""
    page = _page(cache, home)
    for block in tuple(cache.pools[home]):
        start, units = block & ADDRESS, block >> SHIFT
        base = start - start % (2 * SPAN)
        first = base + -(-(start - base) // page) * page
        last = base + (start + units - base) // page * page
        if first >= last:
            continue
        cache.remove(home, block)
        if first > start:
            cache.insert(home, start, first - start)
        if start + units > last:
            cache.insert(home, last, start + units - last)
        cache.reserved -= last - first
        _join_gap(cache, home, first, last - first)


def _join_gap(cache: AllocatorState, home: int, start: int, units: int) -> None:
    """Add an unmapped range, joined with those that touch it; a segment of nothing else goes."""
    for other in tuple(cache.gaps[home]):
        more = cache.unmapped[other]
        if other + more == start or other == start + units:
            del cache.unmapped[other]
            cache.gaps[home].remove(other)
            start, units = min(start, other), units + more
    if units < SPAN:
        _add_gap(cache, home, start, units)


def _add_gap(cache: AllocatorState, home: int, start: int, units: int) -> None:
    """Remember an unmapped range."""
    cache.unmapped[start] = units
    insort(cache.gaps[home], start)


def _page(cache: AllocatorState, home: int) -> int:
    """Units of a page: 2 MiB in the small pool, 20 MiB in the large one."""
    return SMALL_SEGMENT if home % 2 else cache.plan.large_segment
