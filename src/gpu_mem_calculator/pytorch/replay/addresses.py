"""The addresses of segments: between free blocks of equal size the lower address is used first.

Rule, inferred from the addresses of recorded `segment_alloc` events (H200, CUDA 13.0): address
space is taken in chunks of 32 MiB, each new chunk below all others; a segment starts at its chunk's
start, and the rest of a chunk serves later segments that fit, the lowest chunk first. A chunk
without a segment is released, and the highest hole that fits is filled first, from its top. Not
modelled: addresses that the driver took for itself as the process began, whose rests some early
segments get (16 of 400 in a usual run).
"""

from __future__ import annotations

from bisect import bisect_left, insort

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
