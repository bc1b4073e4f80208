"""The allocator's state and the loop that every event passes through.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (malloc, get_free_block, should_split,
alloc_found_block, free, free_block, try_merge_blocks).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import length_hint

from gpu_mem_calculator.replay.addresses import Addresses
from gpu_mem_calculator.replay.blocks import ADDRESS, NEVER, SHIFT
from gpu_mem_calculator.replay.expandable import best_fit
from gpu_mem_calculator.replay.growth import grow
from gpu_mem_calculator.replay.plan import Plan
from gpu_mem_calculator.replay.rounding import SMALL, UNIT


class Cache:
    """What torch's allocator holds of one device while a plan is played."""

    __slots__ = (
        "addresses", "ages", "allocated", "cap", "elastic", "ends", "gaps", "kept", "lookups",
        "num_segments", "passed", "peak", "peak_reserved", "plan", "pools", "reserved", "retries",
        "segments", "starts", "tensors", "unmapped", "waits",
    )  # fmt: skip

    def __init__(self, plan: Plan, cap_bytes: int | None = None) -> None:
        self.plan = plan
        self.cap = NEVER if cap_bytes is None else cap_bytes // UNIT
        self.elastic = False  # raise the cap where the run would fail
        self.waits = False  # stop where the cap is first passed, before anything is given back
        self.passed = False  # whether the cap was ever in the way
        self.allocated = self.peak = self.reserved = self.peak_reserved = self.retries = 0
        self.pools: list[list[int]] = [[] for _ in range(plan.num_pools)]  # free blocks
        self.starts: dict[int, int] = {}  # address where a free block starts -> the block
        self.ends: dict[int, int] = {}  # address where it ends -> the block
        self.tensors = [0] * len(plan.units)  # the block of each tensor that is alive
        self.kept: set[int] = set()  # freed tensors whose blocks another stream still uses
        self.segments: dict[int, int] = {}  # segments of cudaMalloc: address -> units
        self.addresses = Addresses()
        self.unmapped: dict[int, int] = {}  # expandable: unmapped ranges, address -> units
        self.gaps: list[list[int]] = [[] for _ in range(plan.num_pools)]  # their addresses
        self.num_segments = 0  # expandable segments so far
        collects = plan.collects and cap_bytes is not None
        self.ages: dict[int, int] | None = {} if collects else None  # free block -> lookups then
        self.lookups = 0  # searches of the large pools

    def copy(self) -> Cache:
        """The same state again, to be played on under another cap."""
        twin = Cache(self.plan)
        for name in ("allocated", "cap", "elastic", "lookups", "num_segments", "passed", "peak",
                     "peak_reserved", "reserved", "retries", "waits"):  # fmt: skip
            setattr(twin, name, getattr(self, name))
        twin.pools = [list(pool) for pool in self.pools]
        twin.gaps = [list(gap) for gap in self.gaps]
        twin.starts, twin.ends = dict(self.starts), dict(self.ends)
        twin.tensors, twin.kept = list(self.tensors), set(self.kept)
        twin.segments, twin.unmapped = dict(self.segments), dict(self.unmapped)
        twin.addresses = self.addresses.copy()
        twin.ages = None if self.ages is None else dict(self.ages)
        return twin

    def reserve(self, units: int) -> None:
        """Count what the driver gave."""
        self.reserved += units
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def insert(self, home: int, start: int, units: int) -> None:
        """Put a free block into its pool."""
        block = units << SHIFT | start
        insort(self.pools[home], block)
        self.starts[start] = self.ends[start + units] = block
        if self.ages is not None:
            self.ages[block] = self.lookups

    def remove(self, home: int, block: int) -> None:
        """Take a free block out of its pool."""
        pool, start = self.pools[home], block & ADDRESS
        del pool[bisect_left(pool, block)]
        del self.starts[start], self.ends[start + (block >> SHIFT)]

    def insert_merged(self, home: int, start: int, units: int) -> None:
        """Put a free block into its pool, joined with the free blocks that touch it."""
        for touching in (self.ends.get(start), self.starts.get(start + units)):
            if touching is not None:
                self.remove(home, touching)
                start, units = min(start, touching & ADDRESS), units + (touching >> SHIFT)
        self.insert(home, start, units)

    def bring_back(self, events: int) -> None:
        """Free the kept blocks whose other streams have finished by this number of events."""
        for tensor in sorted(t for t in self.kept if self.plan.uses[t] <= events):
            self.kept.remove(tensor)
            block = self.tensors[tensor]
            self.insert_merged(self.plan.pool_of[tensor], block & ADDRESS, block >> SHIFT)

    # One loop with everything in locals, longer than a screen: a call costs more than an event.
    def play(self, events: Sequence[int]) -> int:
        """Play events; how many were played (all, unless memory ran out)."""
        plan, pools, starts, ends = self.plan, self.pools, self.starts, self.ends
        units, wanted, pool_of, uses = plan.units, plan.wanted, plan.pool_of, plan.uses
        oversize, rounding, unsplit = plan.oversize, plan.rounding, plan.unsplit
        tensors, unmapped, ages, least_rest = (
            self.tensors,
            self.unmapped,
            self.ages,
            plan.least_rest,
        )
        find, insert, shift, mask = bisect_left, insort, SHIFT, ADDRESS
        allocated, peak, played = self.allocated, self.peak, len(events)
        todo = iter(events)
        for event in todo:
            if event >= 0:
                need = units[event]
                home = pool_of[event]
                pool = pools[home]
                index = find(pool, wanted[event])
                if ages is not None and need > SMALL:
                    self.lookups += 1
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
                    block = grow(self, event)
                    if not block:
                        played -= length_hint(todo) + 1
                        break
                    start, size = block & mask, block >> shift
                rest = size - need
                if rest > least_rest[home] and need < unsplit:
                    block, size = need << shift | start, need
                    start += need
                    free = rest << shift | start
                    insert(pool, free)
                    starts[start] = ends[start + rest] = free
                    if ages is not None:
                        ages[free] = self.lookups
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
                self.kept.add(event)
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
                ages[block] = self.lookups
        self.allocated, self.peak = allocated, peak
        return played
