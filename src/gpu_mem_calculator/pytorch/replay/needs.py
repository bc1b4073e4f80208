"""The least memory that a run survives in: the smallest cap under which no allocation fails.

A replay under a cap equals one without until reserved memory would first exceed the cap, so all
replays start where the lowest cap is first exceeded. An elastic replay, which raises its cap
wherever it would fail, gives the first cap to try; the rest is bisection.

A replay depends on its cap only through comparisons: would a new segment exceed it? Let
`most_under` be the most that any request within the cap would have reserved, and `least_over` the
least of any request beyond it. Under every cap from `most_under` up to, but not including,
`least_over` each comparison has the same answer, so by induction over the events each step is the
same, and so is the outcome. (An elastic replay's last comparison before it raises its cap counts as
within it, as it would be under the raised cap.) Such a cap is not replayed again. Only garbage
collection, whose threshold is a share of the cap, would depend on the cap in another way; torch
collects none on a card of which it may take all (`AllocatorSettings.memory_fraction`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .blocks import LARGEST
from .footprint import CapOutcome, Footprint
from .plan import ReplayPlan
from .replays import start_replay
from .rounding import UNIT
from .settings import AllocatorSettings
from .stream import AllocationStream

if TYPE_CHECKING:
    from .allocator import ReplayRun
    from .native import NativeRun

CLOSE = 0.003
"""Tolerance of the answer, as a share of it."""
PROBES = (0.01, 0.02, 0.04)
"""A run may survive under one cap and fail under a higher one, because other blocks are then split.
So caps above the least one are tried, by these shares of it: the answer is above all that fail."""


def needs_bytes(stream: AllocationStream, settings: AllocatorSettings | None = None) -> int:
    """The least cap in bytes, to 0.3 %, under which the whole stream survives.

    Torch's out-of-memory errors depend on reserved memory alone, so the CUDA context and other
    users of the card come on top.
    """
    return NeedsSearch(stream, settings or AllocatorSettings()).needs_bytes()


def raised_cap(stream: AllocationStream, settings: AllocatorSettings, cap: int) -> int:
    """The bytes to which a replay raises its cap, each time that it would fail: `cap` itself where
    the stream survives, else often more than the least with which it would.
    """
    player = _replay_rest(start_replay(ReplayPlan(stream, settings)), cap // UNIT, elastic=True)
    return max(cap, player.cap * UNIT)


class NeedsSearch:
    """The search for the least card for one stream, in units.

    - `low`: a cap that is too low; `start`: the replay up to where `low` + 1 is first exceeded
    - `near`: the replay up to where a cap close to the answer is first exceeded
    - `outcomes`: of the replays so far
    - `unlimited`: the footprint without a cap; what it reserves is always enough
    """

    __slots__ = ("low", "near", "outcomes", "plan", "start", "unlimited")

    def __init__(self, stream: AllocationStream, settings: AllocatorSettings) -> None:
        assert not settings.memory_fraction, "the cap of a search is a card's memory"
        self.plan, self.outcomes = ReplayPlan(stream, settings), list[CapOutcome]()
        self.low = self.plan.most_alive - 1
        self.start = self.near = _replay_until(start_replay(self.plan), self.low + 1)
        self.unlimited = self._replay_unlimited()

    def _replay_unlimited(self) -> Footprint:
        """The footprint without a cap, continued from where the search starts."""
        player = _replay_rest(self.start, LARGEST)
        self._add(player)
        return player.footprint()

    def needs_bytes(self) -> int:
        """The least cap in bytes: one that was tried, above which the probes survive.

        It is at most what is reserved without a cap.
        """
        low, most = self.low, self.unlimited.reserved_bytes // UNIT
        elastic = _replay_rest(self.start, low + 1, elastic=True)
        self._add(elastic)
        high = min(elastic.cap, most)
        step = max(int(high * CLOSE), 1)
        self.near = _replay_until(self.start, high - step)
        while not self.survives(high):
            low, step = high, 2 * step
            high = min(high + step, most)
        while low < high - step and self.survives(high - step):
            high, step = high - step, 2 * step
        high = self._bisect(max(low, high - step), high)
        return self._above_failing_probes(high, most) * UNIT

    def _above_failing_probes(self, least: int, most: int) -> int:
        """The least cap above all probes that fail; `least` where none does."""
        caps = [cap for share in PROBES if (cap := least + int(least * share)) < most]
        failing = [index for index, cap in enumerate(caps) if not self.survives(cap)]
        if not failing:
            return least
        above = (*caps[failing[-1] + 1 :], most)
        enough = next((cap for cap in above if self.survives(cap)), None)
        return least if enough is None else self._bisect(caps[failing[-1]], enough)

    def _bisect(self, low: int, high: int) -> int:
        """The least cap that suffices, between `low`, which does not, and `high`, which does."""
        while high - low > max(high * CLOSE, 1):
            middle = (high + low) // 2
            low, high = (low, middle) if self.survives(middle) else (middle, high)
        return high

    def survives(self, cap: int) -> bool:
        """Whether the whole stream survives under a cap in units."""
        return cap > self.low and self.outcome(cap).survives

    def fails_in(self, cap: int) -> str | None:
        """The mark of the phase that runs out of memory under a cap in units; None for none.

        Nothing is released before more than the cap is reserved, so the run does not fail earlier;
        and it fails by the first event after which more than the cap is alive. If both are in one
        phase, no replay is needed.
        """
        marks = self.plan.marks
        if cap > self.low:
            failed_at = self.outcome(cap).failed_at
        else:
            failed_at = self.plan.first_beyond(cap)
            phases = self.unlimited.phases
            first = next((m for _, m in marks if phases[m].reserved_bytes > cap * UNIT), "")
            if first != _mark_after(marks, failed_at) or not self.plan.usual:
                player = start_replay(self.plan, cap * UNIT)
                player.finish()
                failed_at = player.outcome().failed_at
        return None if failed_at is None else _mark_after(marks, failed_at)

    def outcome(self, cap: int) -> CapOutcome:
        """The outcome under a cap: a known one that holds for it, else that of a replay."""
        for known in self.outcomes:
            if known.most_under <= cap < known.least_over:
                return known
        return self._add(_replay_rest(self.near if cap >= self.near.cap else self.start, cap))

    def _add(self, player: ReplayRun | NativeRun) -> CapOutcome:
        """The outcome of a finished replay, which is remembered."""
        self.outcomes.append(player.outcome())
        return self.outcomes[-1]


def _mark_after(marks: list[tuple[int, str]], event: int) -> str:
    """The mark of the phase of an event."""
    return next((name for end, name in marks if event < end), marks[-1][1])


def _replay_until(start: ReplayRun | NativeRun, cap: int) -> ReplayRun | NativeRun:
    """Continue to where `cap` would first be exceeded, before anything is released."""
    player = start.copy()
    player.limit(cap, waits=True)
    player.finish()
    player.limit(cap)
    return player


def _replay_rest(
    start: ReplayRun | NativeRun, cap: int, elastic: bool = False
) -> ReplayRun | NativeRun:
    """Continue to the end under a cap."""
    player = start.copy()
    player.limit(cap, elastic=elastic)
    player.finish()
    return player
