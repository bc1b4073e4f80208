"""Two streams compared event by event: what one requests or frees where the other does not."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import groupby

from msgspec import Struct

from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.pytorch.replay.rounding import block_bytes
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

LARGE = MIB  # larger blocks are in the allocator's large pool


class Event(Struct, frozen=True):
    """An allocation, or the free of a block that an earlier event allocated.

    - size: bytes of the block
    - back: for a free, how many allocations of the compared blocks ago it was allocated; 0: an
      allocation
    - tensor: the block's number in its stream, for its name
    """

    size: int
    back: int
    tensor: int

    @property
    def key(self) -> tuple[int, int]:
        """What is compared when two streams are aligned: size, and which of the two it is."""
        return self.size, min(self.back, 1)


def phase_events(stream: AllocationStream, least: int = 1) -> dict[str, list[Event]]:
    """The events of each phase, of blocks of at least `least` bytes, in the stream's order.

    Frees between two allocations are sorted: the allocator is in the same state after them in any
    order.
    """
    found: dict[str, list[Event]] = {}
    numbers: dict[int, int] = {}
    start = 0
    for end, name in stream.marks:
        found[name] = []
        for event in stream.events[start:end]:
            tensor = event if event >= 0 else ~event
            size = block_bytes(stream.sizes[tensor])
            if size < least:
                continue
            back = 0 if event >= 0 else len(numbers) - numbers[tensor]
            if event >= 0:
                numbers[tensor] = len(numbers)
            found[name].append(Event(size, back, tensor))
        found[name] = list(_frees_sorted(found[name]))
        start = end
    return found


def _frees_sorted(events: list[Event]) -> Iterator[Event]:
    """The events, with the newest block first where several are freed in a row."""
    for _, run in groupby(events, lambda event: event.back > 0):
        yield from sorted(run, key=lambda event: event.back)


class Difference(Struct, frozen=True):
    """Events of the first stream in whose place the second has others, in one phase."""

    phase: str
    at: int
    first: list[Event]
    second: list[Event]

    @property
    def count(self) -> int:
        """How many events differ."""
        return max(len(self.first), len(self.second))


def differences(
    first: AllocationStream, second: AllocationStream, phases: dict[str, str], least: int = 1
) -> Iterator[Difference]:
    """Where two streams differ. `phases`: names in the first stream -> those in the second."""
    ours, theirs = phase_events(first, least), phase_events(second, least)
    for name, other in phases.items():
        left, right = ours[name], theirs[other]
        matcher = SequenceMatcher(None, [e.key for e in left], [e.key for e in right], False)
        for word, i, j, k, end in matcher.get_opcodes():
            if word != "equal":
                yield Difference(name, i, left[i:j], right[k:end])


def equal(
    first: AllocationStream, second: AllocationStream, phases: dict[str, str], least: int = 1
) -> bool:
    """Whether both streams have the same allocations and free the same blocks in the same order."""
    ours, theirs = phase_events(first, least), phase_events(second, least)
    return all(
        [(e.size, e.back) for e in ours[name]] == [(e.size, e.back) for e in theirs[other]]
        for name, other in phases.items()
    )
