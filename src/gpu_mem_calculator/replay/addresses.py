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


class AddressChunk:
    """A piece of address space that the driver fills with segments."""

    __slots__ = ("num_segments", "pages", "rests", "start")

    def __init__(self, start: int, pages: int) -> None:
        self.start, self.pages, self.num_segments = start, pages, 0
        self.rests: Ranges = []

    def copy(self) -> AddressChunk:
        """A copy."""
        twin = AddressChunk(self.start, self.pages)
        twin.num_segments, twin.rests = self.num_segments, list(self.rests)
        return twin


class AddressSpace:
    """The address space of one device, in pages of 2 MiB; ranges are (start, pages), ascending."""

    __slots__ = ("bottom", "chunk_of", "chunks", "holes", "starts")

    def __init__(self) -> None:
        self.bottom = TOP
        self.holes: Ranges = []  # released chunks
        self.chunks: dict[int, AddressChunk] = {}  # by start
        self.chunk_of: dict[int, int] = {}  # segment's start -> its chunk's
        self.starts: dict[int, Ranges] = {}  # pages -> (start, chunk) of the rests of that size

    def take(self, pages: int) -> int:
        """Place a new segment of `pages`; returns its first page."""
        fits = [(rests[0], size) for size, rests in self.starts.items() if size >= pages and rests]
        if fits:
            (start, place), left = min(fits)
            chunk = self.chunks[place]
            self._remove_rest(chunk, start, left)
        else:
            left = -(-pages // CHUNK) * CHUNK
            start = self._new_chunk(left)
            chunk = self.chunks[start] = AddressChunk(start, left)
        self.chunk_of[start] = chunk.start
        chunk.num_segments += 1
        if left > pages:
            self._add_rest(chunk, start + pages, left - pages)
        return start

    def give_back(self, start: int, pages: int) -> None:
        """Release a segment: others can use its pages, and an empty chunk is released."""
        chunk = self.chunks[self.chunk_of.pop(start)]
        chunk.num_segments -= 1
        for rest, more in tuple(chunk.rests):
            if rest + more == start or rest == start + pages:
                self._remove_rest(chunk, rest, more)
                start, pages = min(start, rest), pages + more
        if chunk.num_segments:
            self._add_rest(chunk, start, pages)
            return
        del self.chunks[chunk.start]
        _insert_merged(self.holes, chunk.start, chunk.pages)
        if self.holes[0][0] == self.bottom:
            self.bottom += self.holes.pop(0)[1]

    def state(self) -> tuple[object, ...]:
        """What decides where later segments are placed. The chunks' sizes follow from it, and from
        the segments what is left of them.
        """
        return (self.bottom, list(self.holes), dict(self.chunk_of))

    def copy(self) -> AddressSpace:
        """A copy."""
        twin = AddressSpace()
        twin.bottom, twin.holes, twin.chunk_of = self.bottom, list(self.holes), dict(self.chunk_of)
        twin.chunks = {start: chunk.copy() for start, chunk in self.chunks.items()}
        twin.starts = {size: list(starts) for size, starts in self.starts.items()}
        return twin

    def _new_chunk(self, pages: int) -> int:
        """The start of a new chunk: the top of the highest hole that fits, else the bottom."""
        for index in range(len(self.holes) - 1, -1, -1):
            start, left = self.holes[index]
            if left >= pages:
                del self.holes[index]
                if left > pages:
                    self.holes.insert(index, (start, left - pages))
                return start + left - pages
        self.bottom -= pages
        return self.bottom

    def _add_rest(self, chunk: AddressChunk, start: int, pages: int) -> None:
        insort(chunk.rests, (start, pages))
        insort(self.starts.setdefault(pages, []), (start, chunk.start))

    def _remove_rest(self, chunk: AddressChunk, start: int, pages: int) -> None:
        chunk.rests.remove((start, pages))
        self.starts[pages].remove((start, chunk.start))


def _insert_merged(ranges: Ranges, start: int, pages: int) -> None:
    """Insert a range, merged with adjacent ones."""
    index = bisect_left(ranges, (start, 0))
    if index < len(ranges) and ranges[index][0] == start + pages:
        pages += ranges.pop(index)[1]
    if index and sum(ranges[index - 1]) == start:
        index -= 1
        before, more = ranges.pop(index)
        start, pages = before, pages + more
    ranges.insert(index, (start, pages))
