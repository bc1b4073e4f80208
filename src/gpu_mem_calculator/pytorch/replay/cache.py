"""The allocator's state: free blocks, the blocks of live tensors, and the addresses of segments.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (free_block, try_merge_blocks): between free
blocks of equal size the one with the lower address is used first.

A rule of addresses, inferred from recorded `segment_alloc` events (H200, CUDA 13.0): address
space is taken in chunks of 32 MiB, each new chunk below all others; a segment starts at its chunk's
start, and the rest of a chunk serves later segments that fit, the lowest chunk first. A chunk
without a segment is released, and the highest hole that fits is filled first, from its top. Not
modelled: addresses that the driver took for itself as the process began, whose rests some early
segments get (16 of 400 in a usual run).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from .blocks import ADDRESS, LARGEST, NEVER, SHIFT
from .plan import ReplayPlan
from .rounding import UNIT

CHUNK = 16
"""A chunk of address space: 32 MiB, in pages of 2 MiB."""
TOP = 1 << 27
"""The page below which all segments are placed (256 TiB are enough for any run)."""

Ranges = list[tuple[int, int]]


class AddressSpace:
    """The address space of one device, in pages of 2 MiB; ranges are (start, pages), ascending.

    - bottom: of the lowest chunk; holes: released chunks; widest_hole: no hole has more pages
    - chunks: start -> (pages, segments in it); rests: start -> the ranges without a segment
    - chunk_of: a segment's start -> its chunk's
    - starts: pages -> (start, chunk) of the rests of that size
    """

    __slots__ = ("bottom", "chunk_of", "chunks", "holes", "rests", "starts", "widest_hole")

    def __init__(self) -> None:
        self.bottom, self.widest_hole = TOP, 0
        self.holes: Ranges = []
        self.chunks: dict[int, tuple[int, int]] = {}
        self.rests: dict[int, tuple[tuple[int, int], ...]] = {}
        self.chunk_of: dict[int, int] = {}
        self.starts: dict[int, Ranges] = {}

    def take(self, pages: int) -> int:
        """Place a new segment of `pages`; returns its first page."""
        fits = [(rests[0], size) for size, rests in self.starts.items() if size >= pages and rests]
        if fits:
            (start, chunk), left = min(fits)
            size, num_segments = self.chunks[chunk]
            self.chunks[chunk] = size, num_segments + 1
            self._remove_rest(chunk, start, left)
        else:
            left = -(-pages // CHUNK) * CHUNK
            start = chunk = self._new_chunk(left)
            self.chunks[chunk] = left, 1
        self.chunk_of[start] = chunk
        if left > pages:
            self._add_rest(chunk, start + pages, left - pages)
        return start

    def give_back(self, start: int, pages: int) -> None:
        """Release a segment: others can use its pages, and an empty chunk is released."""
        chunk = self.chunk_of.pop(start)
        size, num_segments = self.chunks[chunk]
        for rest, more in self.rests.get(chunk, ()):
            if rest + more == start or rest == start + pages:
                self._remove_rest(chunk, rest, more)
                start, pages = min(start, rest), pages + more
        if num_segments > 1:
            self.chunks[chunk] = size, num_segments - 1
            self._add_rest(chunk, start, pages)
            return
        del self.chunks[chunk]
        hole = _insert_merged(self.holes, chunk, size)
        if self.holes[0][0] == self.bottom:
            self.bottom += self.holes.pop(0)[1]
        else:
            self.widest_hole = max(self.widest_hole, hole)

    def state(self) -> tuple[object, ...]:
        """What decides where later segments are placed. The chunks' sizes follow from it, and from
        the segments what is left of them.
        """
        return (self.bottom, list(self.holes), dict(self.chunk_of))

    def copy(self) -> AddressSpace:
        """A copy."""
        twin = AddressSpace()
        twin.bottom, twin.widest_hole = self.bottom, self.widest_hole
        twin.holes, twin.chunk_of = list(self.holes), dict(self.chunk_of)
        twin.chunks, twin.rests = dict(self.chunks), dict(self.rests)
        twin.starts = {size: list(starts) for size, starts in self.starts.items()}
        return twin

    def _new_chunk(self, pages: int) -> int:
        """The start of a new chunk: the top of the highest hole that fits, else the bottom."""
        if pages <= self.widest_hole:
            for index in range(len(self.holes) - 1, -1, -1):
                start, left = self.holes[index]
                if left >= pages:
                    del self.holes[index]
                    if left > pages:
                        self.holes.insert(index, (start, left - pages))
                    return start + left - pages
            self.widest_hole = max((left for _, left in self.holes), default=0)
        self.bottom -= pages
        return self.bottom

    def _add_rest(self, chunk: int, start: int, pages: int) -> None:
        self.rests[chunk] = (*self.rests.get(chunk, ()), (start, pages))
        insort(self.starts.setdefault(pages, []), (start, chunk))

    def _remove_rest(self, chunk: int, start: int, pages: int) -> None:
        self.rests[chunk] = tuple(rest for rest in self.rests[chunk] if rest[0] != start)
        self.starts[pages].remove((start, chunk))


def _insert_merged(ranges: Ranges, start: int, pages: int) -> int:
    """Insert a range, merged with adjacent ones; returns the pages of the merged range."""
    index = bisect_left(ranges, (start, 0))
    if index < len(ranges) and ranges[index][0] == start + pages:
        pages += ranges.pop(index)[1]
    if index and sum(ranges[index - 1]) == start:
        index -= 1
        before, more = ranges.pop(index)
        start, pages = before, pages + more
    ranges.insert(index, (start, pages))
    return pages


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
        twin.kept, twin.segments = set(self.kept), dict(self.segments)
        twin.addresses = self.addresses.copy()
        twin.pools = [list(pool) for pool in self.pools]
        twin.gaps = [list(gap) for gap in self.gaps]
        twin.starts, twin.ends = dict(self.starts), dict(self.ends)
        twin.tensors, twin.unmapped = list(self.tensors), dict(self.unmapped)
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

    def free_blocks(self, pool_index: int, least: int) -> list[int]:
        """The free blocks of a pool from a size on, in order."""
        pool = self.pools[pool_index]
        return pool[bisect_left(pool, least << SHIFT) :]

    def reset_peaks(self) -> None:
        """Begin a phase."""
        self.peak, self.peak_reserved = self.allocated, self.reserved

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
