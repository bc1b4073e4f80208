"""The loop over events.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (malloc, get_free_block, should_split,
alloc_found_block, free, free_block, try_merge_blocks).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import length_hint

from .blocks import ADDRESS, SHIFT
from .cache import AllocatorState
from .expandable import best_fit
from .growth import grow
from .rounding import SMALL


# Long loops with everything in locals, because a call costs more than an event.
def play_events(cache: AllocatorState, events: Sequence[int]) -> int:
    """Replay events; returns how many (all, unless memory ran out)."""
    return (_play_usual if cache.plan.usual else _play_any)(cache, events)


def _play_usual(cache: AllocatorState, events: Sequence[int]) -> int:
    """Replay events of a plan that is `usual`. A block and a request are compared as integers, with
    the address in the low bits, where that is the same.
    """
    pools, starts, ends = cache.pools, cache.starts, cache.ends
    units, wanted, pool_of = cache.plan.units, cache.plan.wanted, cache.plan.pool_of
    tensors, least_rest = cache.tensors, cache.plan.least_rest_block
    find, insert, shift, mask = bisect_left, insort, SHIFT, ADDRESS
    allocated, peak, played = cache.allocated, cache.peak, len(events)
    todo = iter(events)
    for event in todo:
        if event >= 0:
            want = wanted[event]
            pool_index = pool_of[event]
            pool = pools[pool_index]
            index = find(pool, want)
            if index < len(pool):
                block = pool.pop(index)
                start = block & mask
                del starts[start]
                rest = block - want
                if rest > least_rest[pool_index]:
                    need = units[event]
                    free = rest + need
                    insert(pool, free)
                    starts[start + need] = ends[start + (block >> shift)] = free
                    tensors[event] = want | start
                    allocated += need
                else:
                    tensors[event] = block
                    size = block >> shift
                    del ends[start + size]
                    allocated += size
            else:
                block = grow(cache, event)
                if not block:
                    played -= length_hint(todo) + 1
                    break
                rest = block - want
                if rest > least_rest[pool_index]:
                    need, start = units[event], block & mask
                    free = rest + need
                    insert(pool, free)
                    starts[start + need] = ends[start + (block >> shift)] = free
                    block = want | start
                tensors[event] = block
                allocated += block >> shift
            if allocated > peak:
                peak = allocated
            continue
        event = ~event
        block = tensors[event]
        start = block & mask
        size = block >> shift
        allocated -= size
        end = start + size
        pool = pools[pool_of[event]]
        if start in ends:
            before = ends.pop(start)
            del pool[find(pool, before)]
            start = before & mask
            if end in starts:
                after = starts.pop(end)
                del pool[find(pool, after)]
                end += after >> shift
            block = end - start << shift | start
        elif end in starts:
            after = starts.pop(end)
            del pool[find(pool, after)]
            end += after >> shift
            block = end - start << shift | start
        insert(pool, block)
        starts[start] = ends[end] = block
    cache.allocated, cache.peak = allocated, peak
    return played


def _play_any(cache: AllocatorState, events: Sequence[int]) -> int:
    """Replay events of any plan."""
    plan, pools, starts, ends = cache.plan, cache.pools, cache.starts, cache.ends
    units, wanted, pool_of, uses = plan.units, plan.wanted, plan.pool_of, plan.uses
    oversize, rounding, unsplit = plan.oversize, plan.rounding, plan.unsplit
    tensors, unmapped, ages = cache.tensors, cache.unmapped, cache.ages
    least_rest = plan.least_rest
    find, insert, shift, mask = bisect_left, insort, SHIFT, ADDRESS
    allocated, peak, played = cache.allocated, cache.peak, len(events)
    todo = iter(events)
    for event in todo:
        if event >= 0:
            need = units[event]
            pool_index = pool_of[event]
            pool = pools[pool_index]
            index = find(pool, wanted[event])
            if ages is not None and need > SMALL:
                cache.lookups += 1
            block = 0
            if index < len(pool):
                block = pool[index]
                if unmapped:
                    block, index = best_fit(pool, index, unmapped)
                size = block >> shift
                if size >= oversize and (need < oversize or size >= need + rounding):
                    block = 0
            if block:
                del pool[index]
                start = block & mask
                del starts[start], ends[start + size]
            else:
                block = grow(cache, event)
                if not block:
                    played -= length_hint(todo) + 1
                    break
                start, size = block & mask, block >> shift
            rest = size - need
            if rest > least_rest[pool_index] and need < unsplit:
                block, size = need << shift | start, need
                start += need
                free = rest << shift | start
                insert(pool, free)
                starts[start] = ends[start + rest] = free
                if ages is not None:
                    ages[free] = cache.lookups
            tensors[event] = block
            allocated += size
            if allocated > peak:
                peak = allocated
            continue
        event = ~event
        block = tensors[event]
        size = block >> shift
        allocated -= size
        if event in uses:
            cache.kept.add(event)
            continue
        start = block & mask
        end = start + size
        pool = pools[pool_of[event]]
        if start in ends:
            block = ends.pop(start)
            del pool[find(pool, block)]
            start = block & mask
            del starts[start]
        if end in starts:
            block = starts.pop(end)
            del pool[find(pool, block)]
            end += block >> shift
        block = end - start << shift | start
        insert(pool, block)
        starts[start] = ends[end] = block
        if ages is not None:
            ages[block] = cache.lookups
    cache.allocated, cache.peak = allocated, peak
    return played
