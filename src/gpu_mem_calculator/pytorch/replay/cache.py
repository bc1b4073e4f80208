"""The allocator's state: free blocks, segments, and the blocks of live tensors.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (free_block, try_merge_blocks).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from .addresses import AddressSpace
from .blocks import ADDRESS, LARGEST, NEVER, SHIFT
from .plan import ReplayPlan
from .rounding import UNIT

COUNTERS = (
    "allocated",
    "cap",
    "elastic",
    "segment_changes",
    "least_over",
    "lookups",
    "most_under",
    "num_segments",
    "peak",
    "peak_reserved",
    "reserved",
    "retries",
    "waits",
)
"""Fields of the state that are single values."""


class AllocatorState:
    """The state of torch's allocator on one device during a replay, in units of 512 bytes."""

    __slots__ = (
        "addresses",
        "ages",
        "allocated",
        "cap",
        "elastic",
        "ends",
        "gaps",
        "kept",
        "least_over",
        "lookups",
        "most_under",
        "num_segments",
        "peak",
        "peak_reserved",
        "plan",
        "pools",
        "reserved",
        "retries",
        "segment_changes",
        "segments",
        "starts",
        "tensors",
        "unmapped",
        "waits",
    )

    def __init__(self, plan: ReplayPlan, cap_bytes: int | None = None) -> None:
        self.plan = plan
        self.cap = LARGEST if cap_bytes is None else cap_bytes // UNIT
        self.elastic = False  # raise the cap where the run would fail
        self.waits = False  # stop where the cap is first exceeded, before anything is released
        self.segment_changes = 0  # how often segments may have changed
        self.most_under = 0  # the most that a request within the cap would have reserved
        self.least_over = NEVER  # the least that a request beyond the cap would have
        self.allocated = self.peak = self.reserved = self.peak_reserved = self.retries = 0
        self.pools: list[list[int]] = [[] for _ in range(plan.num_pools)]  # free blocks
        self.starts: dict[int, int] = {}  # start address of a free block -> the block
        self.ends: dict[int, int] = {}  # its end address -> the block
        self.tensors = [0] * len(plan.units)  # the block of each live tensor
        self.kept: set[int] = set()  # freed tensors whose blocks another CUDA stream still uses
        self.segments: dict[int, int] = {}  # segments from cudaMalloc: address -> units
        self.addresses = AddressSpace()
        self.unmapped: dict[int, int] = {}  # expandable: unmapped ranges, address -> units
        self.gaps: list[list[int]] = [[] for _ in range(plan.num_pools)]  # their addresses
        self.num_segments = 0  # expandable segments so far
        collects = plan.collects and cap_bytes is not None
        # Free block -> lookups when it was freed:
        self.ages: dict[int, int] | None = {} if collects else None
        self.lookups = 0  # searches of the large pools

    def copy(self) -> AllocatorState:
        """A copy, to be continued under another cap."""
        twin = AllocatorState(self.plan)
        for name in COUNTERS:
            setattr(twin, name, getattr(self, name))
        twin.pools = [list(pool) for pool in self.pools]
        twin.gaps = [list(gap) for gap in self.gaps]
        twin.starts, twin.ends = dict(self.starts), dict(self.ends)
        twin.tensors, twin.kept = list(self.tensors), set(self.kept)
        twin.segments, twin.unmapped = dict(self.segments), dict(self.unmapped)
        twin.addresses = self.addresses.copy()
        twin.ages = None if self.ages is None else dict(self.ages)
        return twin

    def segment_state(self) -> tuple[object, ...]:
        """What decides where the next segment is placed, and whether the cap allows it."""
        expandable = (dict(self.unmapped), [list(gap) for gap in self.gaps], self.num_segments)
        return (self.cap, self.reserved, dict(self.segments), self.addresses.state(), expandable)

    def reserve(self, units: int) -> None:
        """Count units that the driver has allocated."""
        self.reserved += units
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def insert(self, pool_index: int, start: int, units: int) -> None:
        """Add a free block to its pool."""
        block = units << SHIFT | start
        insort(self.pools[pool_index], block)
        self.starts[start] = self.ends[start + units] = block
        if self.ages is not None:
            self.ages[block] = self.lookups

    def remove(self, pool_index: int, block: int) -> None:
        """Take a free block out of its pool."""
        pool, start = self.pools[pool_index], block & ADDRESS
        del pool[bisect_left(pool, block)]
        del self.starts[start], self.ends[start + (block >> SHIFT)]

    def insert_merged(self, pool_index: int, start: int, units: int) -> None:
        """Add a free block to its pool, merged with adjacent free blocks."""
        for neighbour in (self.ends.get(start), self.starts.get(start + units)):
            if neighbour is not None:
                self.remove(pool_index, neighbour)
                start, units = min(start, neighbour & ADDRESS), units + (neighbour >> SHIFT)
        self.insert(pool_index, start, units)

    def free_kept(self, events: int) -> None:
        """Free the kept blocks whose other CUDA streams have finished after `events` events."""
        for tensor in sorted(t for t in self.kept if self.plan.uses[t] <= events):
            self.kept.remove(tensor)
            block = self.tensors[tensor]
            self.insert_merged(self.plan.pool_of[tensor], block & ADDRESS, block >> SHIFT)
