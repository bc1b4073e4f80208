"""Replay a stream of allocations and frees through a model of torch's CUDA caching allocator, event
by event.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (malloc, get_free_block, should_split,
alloc_found_block, free, free_block, try_merge_blocks).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import length_hint

from .blocks import ADDRESS, NEVER, SHIFT
from .cache import AllocatorState
from .expandable import best_fit
from .footprint import CapOutcome, Footprint, ReplayPhase
from .growth import grow, release_cached
from .plan import EMPTY, ReplayPlan
from .repeats import MarkState, repeated_window
from .rounding import SMALL, UNIT


# Long loops with everything in locals, because a call costs more than an event.
def play_events(cache: AllocatorState, at: int, end: int) -> int:
    """Replay the events from `at` to before `end`; returns where it ended, earlier where memory
    ran out.
    """
    return at + (_play_usual if cache.plan.usual else _play_any)(cache, cache.plan.events[at:end])


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


class ReplayRun:
    """A replay in progress, in Python: `at` events have been replayed, and the first `stop` stops
    passed.

    `states`: the allocator's state at each mark so far; `alike`: the marks by their state's digest.
    """

    __slots__ = (
        "alike",
        "at",
        "cache",
        "failed_at",
        "peak",
        "peak_reserved",
        "phases",
        "states",
        "stop",
    )

    def __init__(self, plan: ReplayPlan, cap: int | None = None) -> None:
        self.cache = AllocatorState(plan, cap)
        self.at = self.stop = self.peak = self.peak_reserved = 0
        self.failed_at: int | None = None
        self.phases: dict[str, ReplayPhase] = {}
        self.states: list[MarkState] = []
        self.alike: dict[int, tuple[int, ...]] = {}

    def copy(self) -> ReplayRun:
        """A copy, to be continued under another cap."""
        twin = ReplayRun.__new__(ReplayRun)
        twin.cache, twin.phases = self.cache.copy(), dict(self.phases)
        twin.states, twin.alike = list(self.states), dict(self.alike)
        for name in ("at", "failed_at", "peak", "peak_reserved", "stop"):
            setattr(twin, name, getattr(self, name))
        return twin

    def limit(self, cap: int, *, elastic: bool = False, waits: bool = False) -> None:
        """Go on under a cap in units.

        elastic: it is raised where the run would fail; waits: the run stops where it is first
        exceeded, before anything is released.
        """
        cache, self.failed_at = self.cache, None
        cache.cap, cache.elastic, cache.waits = cap, elastic, waits

    @property
    def cap(self) -> int:
        """The most units that may be reserved."""
        return self.cache.cap

    @property
    def allocated(self) -> int:
        """Units allocated now."""
        return self.cache.allocated

    @property
    def reserved(self) -> int:
        """Units reserved now."""
        return self.cache.reserved

    def outcome(self) -> CapOutcome:
        """The outcome under the cap."""
        self.keep_peaks()
        cache = self.cache
        return CapOutcome(cache.most_under, cache.least_over, self.failed_at, self.peak_reserved)

    def finish(self) -> bool:
        """Replay to the end; returns whether memory sufficed."""
        return self.advance(len(self.cache.plan.events))

    def advance(self, end: int) -> bool:
        """Replay the events before `end`, and the stops among them; whether memory sufficed."""
        stops = self.cache.plan.stops
        while self.stop < len(stops) and stops[self.stop][0] <= end:
            at, name = stops[self.stop]
            if not self._play(at):
                return False
            self.stop += 1
            self.cache.free_kept(at if name is None else NEVER)
            if name == EMPTY:
                release_cached(self.cache)
            elif name is not None:
                self._mark(name)
                self._skip_repeats(end)
        return self._play(end)

    def _play(self, end: int) -> bool:
        """Replay the events before `end`, with no stop among them."""
        cache, plan = self.cache, self.cache.plan
        event = plan.events[self.at] if end - self.at == 1 else -1
        if end - self.at == 1 and not plan.units[max(event, ~event)]:
            self.at = end  # a tensor without bytes
        if self.at < end:
            self.at = play_events(cache, self.at, end)
        if self.at < end:
            self.failed_at = self.at
        return self.at >= end

    def _mark(self, name: str) -> None:
        """End a phase: keep its statistics, and reset the peaks."""
        cache = self.cache
        self.phases[name] = ReplayPhase(
            cache.peak * UNIT, cache.allocated * UNIT, cache.peak_reserved * UNIT
        )
        self.keep_peaks()
        cache.reset_peaks()
        self._remember(MarkState.of(cache, self.states[-1] if self.states else None))

    def _remember(self, state: MarkState) -> None:
        self.alike[state.digest] = (*self.alike.get(state.digest, ()), len(self.states))
        self.states.append(state)

    def _skip_repeats(self, end: int) -> None:
        """Skip windows before `end` that would repeat the one that a mark has just ended."""
        plan, tensors = self.cache.plan, self.cache.tensors
        while window := repeated_window(self, end):
            repeated = self.states[-window.marks :]
            self.cache.retries += repeated[-1].retries - self.states[-window.marks - 1].retries
            for mark, state in enumerate(repeated, len(self.states)):
                self.phases[plan.marks[mark][1]] = self.phases[plan.marks[mark - window.marks][1]]
                self._remember(state)
            tensors[window.tensors] = tensors[window.tensors_before]
            self.at, self.stop = plan.marks[mark][0], plan.mark_stops[mark] + 1

    def keep_peaks(self) -> None:
        """Update the peaks of the whole stream."""
        self.peak = max(self.peak, self.cache.peak)
        self.peak_reserved = max(self.peak_reserved, self.cache.peak_reserved)

    def footprint(self) -> Footprint:
        """The result so far."""
        self.keep_peaks()
        return Footprint(
            allocated_bytes=self.peak * UNIT,
            reserved_bytes=self.peak_reserved * UNIT,
            phases=self.phases,
            retries=self.cache.retries,
            failed_at=self.failed_at,
        )
