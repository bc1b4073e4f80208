"""The allocator's state: free blocks, segments, tensors that are alive.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (free_block, try_merge_blocks).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from .addresses import AddressSpace
from .blocks import ADDRESS, NEVER, SHIFT
from .plan import ReplayPlan
from .rounding import UNIT


class AllocatorState:
    """What torch's allocator holds of one device while a plan is played."""

    __slots__ = (
        "addresses", "ages", "allocated", "cap", "elastic", "ends", "gaps", "kept", "lookups",
        "num_segments", "passed", "peak", "peak_reserved", "plan", "pools", "reserved", "retries",
        "segments", "starts", "tensors", "unmapped", "waits",
    )  # fmt: skip

    def __init__(self, plan: ReplayPlan, cap_bytes: int | None = None) -> None:
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
        self.addresses = AddressSpace()
        self.unmapped: dict[int, int] = {}  # expandable: unmapped ranges, address -> units
        self.gaps: list[list[int]] = [[] for _ in range(plan.num_pools)]  # their addresses
        self.num_segments = 0  # expandable segments so far
        collects = plan.collects and cap_bytes is not None
        self.ages: dict[int, int] | None = {} if collects else None  # free block -> lookups then
        self.lookups = 0  # searches of the large pools

    def copy(self) -> AllocatorState:
        """The same state again, to be played on under another cap."""
        twin = AllocatorState(self.plan)
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
