"""Windows of a stream that repeat the one before them, as a training step repeats the last.

Where the same requests come again while the allocator is in the same state, it does the same again,
so a replay skips them. A window is the events between two marks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .allocator import ReplayRun
    from .cache import AllocatorState
    from .plan import ReplayPlan
    from .stream import AllocationStream


class MarkState(NamedTuple):
    """The allocator's state at a mark: all that its answer to later requests depends on.

    - digest: of what is allocated and free, which differs for almost all states that differ
    - pools: the free blocks; what is not free is in use
    - segments: those of the driver, their addresses and the cap, which requests compare with
    - retries: a count, which decides nothing
    """

    digest: int
    allocated: int
    pools: tuple[tuple[int, ...], ...]
    segments: tuple[object, ...]
    segment_changes: int
    retries: int

    @classmethod
    def of(cls, cache: AllocatorState, before: MarkState | None) -> MarkState:
        """The state now; `before`: at the last mark, which may have had the same segments."""
        segments = (
            before.segments if before and before.segment_changes == cache.segment_changes else None
        )
        pools = tuple(map(tuple, cache.pools))
        return cls(
            digest=hash((cache.allocated, pools)),
            allocated=cache.allocated,
            pools=pools,
            segments=segments or cache.segment_state(),
            segment_changes=cache.segment_changes,
            retries=cache.retries,
        )

    def equals(self, other: MarkState) -> bool:
        """Whether later requests have the same answers."""
        return self[:4] == other[:4]


class RepeatedWindow(NamedTuple):
    """A window with the requests of the one before it, each for another tensor.

    - marks: how many it spans
    - tensors, tensors_before: those allocated in it, and in the one before it
    - shift: how many they are
    - freed: tensors freed in it that are older
    """

    marks: int
    tensors: slice
    tensors_before: slice
    shift: int
    freed: list[int]


class Repeats:
    """Finds the windows of a stream that repeat, and remembers what it found."""

    __slots__ = ("known", "plan", "stream")

    def __init__(self, stream: AllocationStream, plan: ReplayPlan) -> None:
        self.stream, self.plan = stream, plan
        self.known: dict[tuple[int, int], RepeatedWindow | None] = {}

    def after(self, mark: int, marks: int) -> RepeatedWindow | None:
        """The window of `marks` marks after a mark, if it repeats the one before the mark."""
        if (mark, marks) not in self.known:
            self.known[mark, marks] = self._compare(mark, marks)
        return self.known[mark, marks]

    def _compare(self, mark: int, marks: int) -> RepeatedWindow | None:
        stream, plan = self.stream, self.plan
        begin, middle, end = (stream.marks[m][0] for m in (mark - marks, mark, mark + marks))
        if middle - begin != end - middle or any(begin <= at <= end for at in stream.empties):
            return None
        events, before = stream.events[middle:end], stream.events[begin:middle]
        first = min((event for event in events if event >= 0), default=0)
        shift = first - min((event for event in before if event >= 0), default=0)
        if events.tolist() != [e + shift if e >= 0 else e - shift for e in before]:
            return None
        new = slice(first, max(events, default=first - 1) + 1)  # a phase may allocate nothing
        old = slice(first - shift, max(before, default=first - shift - 1) + 1)
        if plan.units[old] != plan.units[new] or plan.pool_of[old] != plan.pool_of[new]:
            return None
        freed = [~event for event in events if -first <= event < 0]
        return RepeatedWindow(marks, new, old, shift, freed)


def repeated_window(run: ReplayRun, end: int) -> RepeatedWindow | None:
    """The window after the last mark that does what the one before it did, if it ends by `end`."""
    plan, states, tensors = run.cache.plan, run.states, run.cache.tensors
    if plan.collects or plan.uses:
        return None
    mark, now = len(states) - 1, states[-1]
    for before in reversed(run.alike[now.digest][:-1]):
        marks = mark - before
        ends = mark + marks < len(plan.marks) and plan.marks[mark + marks][0] <= end
        if ends and states[before].equals(now):
            window = plan.repeats.after(mark, marks)
            if window is not None and all(
                tensors[tensor] == tensors[tensor - window.shift] for tensor in window.freed
            ):
                return window
    return None
