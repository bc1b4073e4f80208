"""Of equal layers a few are written, and the others continue them.

What a writer does next is decided by the instant's sign and the shape of its state; the rest of its
state is numbers of tensors. Every number that it writes, and every number of the next state, is
that of a new tensor or one of the state. So where two cycles of instants with equal signs leave the
shape as it is, and change the state's numbers by as much, all equal ones that follow do: what they
write differs, event by event, by as much from the cycle before.
`tests/training/step/test_cycles.py` compares.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

WIDTH = 8  # bytes of an event
FEWEST = 6  # cycles; fewer are written one by one
MOST_TRIES = 4  # cycles that are written before the state may change regularly


Numbers = list[int]
"""The numbers in the stream of a block's tensors, which its events index: at i that of tensor i, at
~i its complement."""


class KeptNumbers(Struct, frozen=True):
    """The numbers of one of several equal blocks: of block 0 `first`, of block 1 `second`."""

    first: Numbers
    second: Numbers
    number: int

    def numbers(self) -> Numbers:
        """The block's numbers."""
        if not self.number:
            return self.first
        pairs = zip(self.first, self.second, strict=True)
        return [a + self.number * (b - a) for a, b in pairs]


def lines(before: Numbers, last: Numbers, count: int) -> list[Numbers]:
    """The next rows of numbers, each as far from the one before it as `last` from `before`."""
    return [KeptNumbers(before, last, number).numbers() for number in range(2, count + 2)]


def follows(before: KeptNumbers, last: KeptNumbers, new: KeptNumbers) -> bool:
    """Whether three blocks are of one line, at equal distances."""
    same = before.first is last.first is new.first and before.second is last.second is new.second
    return same and new.number - last.number == last.number - before.number


def steps(row: Sequence[int], following: Sequence[int]) -> list[int]:
    """By how much each number differs from the one before it."""
    return [b - a for a, b in zip(row, following, strict=True)]


def _whole(window: array[int]) -> int:
    """A window as one integer, whose digits are its numbers: to add two adds number by number."""
    return int.from_bytes(window.tobytes(), sys.byteorder)


def continued(window: array[int], following: array[int], count: int) -> array[int]:
    """The next `count` windows, where each differs from the one before it as `following` does from
    `window`. Numbers keep their sign.
    """
    before, last = _whole(window), _whole(following)
    size, step = WIDTH * len(window), last - before
    numbers = (last + step * number for number in range(1, count + 1))
    return array("q", b"".join(number.to_bytes(size, sys.byteorder) for number in numbers))


def shifted(window: array[int], shift: int) -> array[int]:
    """The same events of tensors whose numbers are higher by `shift`."""
    whole, ones = _whole(window), _whole(array("q", [1]) * len(window))
    negative = whole >> (8 * WIDTH - 1) & ones
    moved = whole + shift * (ones - 2 * negative)
    return array("q", moved.to_bytes(WIDTH * len(window), sys.byteorder))


def regular(numbers: array[int], begin: int, length: int, count: int) -> int:
    """How many of `count` windows of one length, from `begin` on, continue the first two."""
    if not length:
        return count
    starts = range(begin, begin + count * length, length)
    windows = [_whole(numbers[start : start + length]) for start in starts]
    step = windows[1] - windows[0]
    for number in range(2, count):
        if windows[number] != windows[number - 1] + step:
            return number
    return count


class State(Struct, frozen=True):
    """What a writer has between two cycles.

    - `shape`: what decides what is written next; `numbers`: of tensors.
    - `written`: the lengths of what only grows, events and tensors first.
    - `inputs`: what forward has kept for the blocks of the next cycle, where it runs backward.
    """

    shape: Hashable
    numbers: list[int]
    written: list[int]
    inputs: list[KeptNumbers]


class PhaseInstants(Struct, frozen=True):
    """The names of a phase's instants in order, and the place of each."""

    names: list[str]
    places: Mapping[str, int]


class Cycle(Struct, frozen=True):
    """Instants of a phase that follow each other several times with equal signs.

    `begin`, `end`: of all cycles; `length`: of one. `moving`: entries whose copies change within
    one; `growing`: those of which each has more copies.
    """

    phase: PhaseInstants
    begin: int
    end: int
    length: int
    moving: list[int]
    growing: list[int]


class CycleWriter(Protocol):
    """What a writer is asked for its cycles (stream_writer.py has them)."""

    def visit(self, name: str) -> None:
        """Write what is allocated and freed at an instant."""

    def visited(self, name: str) -> None:
        """Note that an instant is written."""

    def sign(self, phase: PhaseInstants, place: int) -> Hashable:
        """What decides, beside the state, what is written at an instant; None: it has no equal."""

    def moving(self, names: Sequence[str]) -> tuple[list[int], list[int]] | None:
        """Of instants and the one that follows, the entries whose copies change, and come back to
        what they were; and those whose copies grow. None where some become fewer.
        """

    def state(self, cycle: Cycle, begin: int) -> State:
        """The state before the cycle that begins at `begin`."""

    def regular(self, cycle: Cycle, states: Sequence[State], begin: int, count: int) -> int:
        """How many of the next `count` cycles continue those between three states."""

    def go_on(self, cycle: Cycle, states: Sequence[State], begin: int, count: int) -> None:
        """Write the next `count` cycles as they continue those between three states."""


def visit_all(writer: CycleWriter, names: list[str]) -> None:
    """Visit the instants of a phase in order."""
    if len(names) < FEWEST:  # of which none can be a cycle
        for name in names:
            _visit(writer, name)
        return
    phase = PhaseInstants(names, {name: place for place, name in enumerate(names)})
    signs = [writer.sign(phase, place) for place in range(len(names))]
    following: list[int] = []  # of each instant, the distance to the next one with its sign
    last: dict[Hashable, int] = {None: len(names)}
    for place in range(len(names) - 1, -1, -1):
        following.append(last.get(signs[place], len(names)) - place)
        if signs[place] is not None:
            last[signs[place]] = place
    following.reverse()
    at = 0
    while at < len(names):
        length, end = following[at], at + following[at]
        while end < len(names) and following[end - length] == length:
            end += 1
        count = (end - at) // length
        changing = writer.moving(names[at : at + length + 1]) if count >= FEWEST else None
        if changing is None:
            _visit(writer, names[at])
            at += 1
            continue
        cycle = Cycle(phase, at, at + count * length, length, *changing)
        _visit_cycles(writer, cycle)
        at = cycle.end


def _visit(writer: CycleWriter, name: str) -> None:
    writer.visit(name)
    writer.visited(name)


def _visit_cycles(writer: CycleWriter, cycle: Cycle) -> None:
    """Visit cycles. The last one is written: what follows it may begin in it."""
    at, tries = cycle.begin, 0
    states: list[State] = []
    while at < cycle.end:
        count = (cycle.end - at) // cycle.length - 1
        if tries <= MOST_TRIES and count:
            states = [*states[-2:], writer.state(cycle, at)]
            if len(states) == 3 and _alike(*states):
                count = writer.regular(cycle, states, at, count)
                if count:
                    writer.go_on(cycle, states, at, count)
                    at, states, tries = at + count * cycle.length, [], 0
        for name in cycle.phase.names[at : at + cycle.length]:
            _visit(writer, name)
        at += cycle.length
        tries += 1


def _alike(first: State, second: State, third: State) -> bool:
    """Whether the state changes by as much in the second cycle as in the first one."""
    shapes = first.shape == second.shape == third.shape
    return shapes and all(
        c - b == b - a
        for field in ("numbers", "written")
        for a, b, c in zip(*(getattr(one, field) for one in (first, second, third)), strict=True)
    )
