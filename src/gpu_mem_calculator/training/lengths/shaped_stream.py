"""The stream of a run whose micro-batches have different shapes.

The stream of each shape is written as if all micro-batches had it, or filled in where another one
is alike (`training/step/refill.py`). Each is cut into start-up, micro-batches and what follows them
in a step. Then the pieces of the drawn shapes are joined: what one leaves alive, the next one
frees. The allocator's state is carried on from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from ...pytorch.replay.stream import AllocationStream
from ...run.phases import STARTUP
from ..step.cycles import shifted
from ..step.stream import STEPS
from .batches import BatchShape, Step, size

FIRST_STEPS = STEPS - 1  # the last of the written steps is repeated


class Piece(Struct, frozen=True):
    """Consecutive events of a stream.

    - begin, end: events; first, last: the tensors that they allocate lie in between
    - older: the places of events that free tensors of earlier pieces, and which of those that are
      alive at its begin, by their order
    - left: what is alive at its end: place among the ones before, or ~number of a new tensor
    - marks: events before each one, from its begin on, and the name without the step
    """

    begin: int
    end: int
    first: int
    last: int
    older: list[tuple[int, int]]
    alive: list[int]
    left: list[int]
    marks: list[tuple[int, str]]


class CutStream(Struct, frozen=True):
    """A stream in pieces: start-up; for each step its micro-batches, then the rest; what follows
    the last mark. `apart`: micro-batches run one after the other; else a step is one piece.
    """

    pieces: list[list[Piece]]
    apart: bool


def cut(stream: AllocationStream, micro_batches: int, *, apart: bool) -> CutStream:
    """The pieces of a stream."""
    ends = [[stream.marks[0][0]]]
    for step in range(STEPS):
        inside = {name: end for end, name in stream.marks if name.startswith(f"s{step}.")}
        last = max(inside.values())
        own = [inside[f"s{step}.a{n}.bwd"] for n in range(micro_batches)] if apart else [last]
        ends.append([*own, last])
    ends.append([len(stream.events)])
    cutter = _Cutter(stream)
    return CutStream([[cutter.piece(end) for end in group] for group in ends], apart)


class _Cutter:
    """Goes through a stream once."""

    def __init__(self, stream: AllocationStream) -> None:
        self.stream, self.at = stream, 0
        self.alive: dict[int, None] = {}
        self.marks = stream.marks[::-1]

    def piece(self, end: int) -> Piece:
        """The piece from the last one's end."""
        begin, stream = self.at, self.stream
        before = sorted(self.alive)
        places = {tensor: place for place, tensor in enumerate(before)}
        own = [event for event in stream.events[begin:end] if event >= 0]
        first, last = min(own, default=0), max(own, default=-1)
        older: list[tuple[int, int]] = []
        for at, event in enumerate(stream.events[begin:end]):
            if event >= 0:
                self.alive[event] = None
            else:
                del self.alive[~event]
                if ~event in places:
                    older.append((at, places[~event]))
        self.at = end
        left = [places.get(tensor, ~(tensor - first)) for tensor in sorted(self.alive)]
        marks: list[tuple[int, str]] = []
        while self.marks and self.marks[-1][0] <= end:
            at, name = self.marks.pop()
            marks.append((at - begin, name if name == STARTUP else name.partition(".")[2]))
        return Piece(begin, end, first, last, older, before, left, marks)


class _Joined:
    """A stream that is joined of pieces. `alive`: tensors, in the order in which their own stream
    made them.
    """

    def __init__(self) -> None:
        self.stream = AllocationStream()
        self.alive: list[int] = []

    def add(self, of: AllocationStream, piece: Piece, step: int) -> None:
        """Add a piece."""
        stream, sizes = self.stream, of.sizes
        assert len(self.alive) == len(piece.alive), "pieces go on from what the last one leaves"
        base, at = len(stream.sizes), len(stream.events)
        events = of.events[piece.begin : piece.end]
        moved = shifted(events, base - piece.first) if events else events
        for place, number in piece.older:
            moved[place] = ~self.alive[number]
        stream.events += moved
        stream.sizes += sizes[piece.first : piece.last + 1]
        if of.streams:
            stream.streams += of.streams[piece.first : piece.last + 1]
        self._add_uses(of, piece, base, at)
        stream.empties += [e - piece.begin + at for e in of.empties if piece.begin < e <= piece.end]
        self.alive = [self.alive[one] if one >= 0 else base + ~one for one in piece.left]
        for end, name in piece.marks:
            stream.marks.append((at + end, name if name == STARTUP else f"s{step}.{name}"))

    def _add_uses(self, of: AllocationStream, piece: Piece, base: int, at: int) -> None:
        """The uses on other CUDA streams of tensors that the piece allocates."""
        for tensor, queue, end in of.uses:
            if piece.first <= tensor <= piece.last:
                until = end if end < 0 else end - piece.begin + at
                self.stream.uses.append((base + tensor - piece.first, queue, until))


class Shapes(Protocol):
    """The stream of each shape, and the same in pieces; all have as many micro-batches in a step,
    of which a drawn step may have more.
    """

    def __getitem__(self, shape: BatchShape) -> AllocationStream: ...
    def cut(self, shape: BatchShape) -> CutStream:
        """The stream in pieces."""


def joined_stream(order: Sequence[Step], streams: Shapes) -> AllocationStream:
    """The stream of these steps."""
    joined = _Joined()
    for number, step in enumerate(order):
        *written, rest = streams.cut(step[0]).pieces[min(number, FIRST_STEPS) + 1]
        batches = (
            _batches(step, written, rest) if streams.cut(step[0]).apart else (max(step, key=size),)
        )
        for place, shape in enumerate(batches):
            pieces, stream = streams.cut(shape).pieces, streams[shape]
            own = pieces[min(number, FIRST_STEPS) + 1]
            if number == place == 0:
                joined.add(stream, pieces[0][0], 0)
            joined.add(stream, own[_place(place, len(batches), len(written))], number)
        joined.add(stream, own[-1], number)
    joined.add(stream, pieces[-1][0], len(order))
    return joined.stream


def _batches(step: Step, written: Sequence[Piece], rest: Piece) -> Step:
    """The micro-batches of a step; where those in the middle cannot be repeated (DDP's first step),
    the largest, as many as are written. A single one of an epoch's last step is taken twice, where
    it would leave what only another one frees.
    """
    most = len(written)
    if len(step) == 1 < most and len(written[0].left) != len(rest.alive):
        return step * 2
    middle = written[max(most - 2, 0)]
    if len(step) <= most or len(middle.alive) == len(middle.left):
        return step
    largest = sorted(range(len(step)), key=lambda place: size(step[place]), reverse=True)[:most]
    return tuple(step[place] for place in sorted(largest))


def _place(number: int, count: int, written: int) -> int:
    """Which of the written micro-batches of a step one of `count` is like: the first, the last, or
    one of those between them.
    """
    if number == count - 1 and number:
        return written - 1
    return min(number, max(written - 2, 0))
