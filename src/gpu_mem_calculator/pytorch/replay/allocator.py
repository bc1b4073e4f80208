"""Replay a stream of allocations and frees through a model of torch's CUDA caching allocator."""

from __future__ import annotations

from msgspec import Struct

from .blocks import NEVER
from .cache import AllocatorState
from .growth import release_cached
from .loop import play_events
from .plan import EMPTY, ReplayPlan
from .repeats import MarkState, repeated_window
from .rounding import UNIT
from .settings import AllocatorSettings, AllocatorSettingsError
from .stream import AllocationStream

__all__ = [
    "AllocatorSettings",
    "AllocatorSettingsError",
    "Footprint",
    "ReplayPhase",
    "history",
    "replay",
]


class ReplayPhase(Struct, frozen=True):
    """Torch's statistics at the end of a phase, where peaks are reset at the start of each phase.

    - peak_bytes: max_memory_allocated
    - start_next_bytes: memory_allocated
    - reserved_bytes: max_memory_reserved
    """

    peak_bytes: int
    start_next_bytes: int
    reserved_bytes: int


class Footprint(Struct, frozen=True):
    """The result of a replay.

    - allocated_bytes, reserved_bytes: peaks of the whole stream
    - phases: statistics of each phase
    - retries: num_alloc_retries, how often all cached segments were released
    - failed_at: the index of the event that ran out of memory, or None
    """

    allocated_bytes: int
    reserved_bytes: int
    phases: dict[str, ReplayPhase]
    retries: int = 0
    failed_at: int | None = None


def replay(
    stream: AllocationStream, settings: AllocatorSettings | None = None, cap: int | None = None
) -> Footprint:
    """Replay a stream; `cap`: most bytes that may be reserved (torch's memory fraction)."""
    player = ReplayRun(ReplayPlan(stream, settings or AllocatorSettings()), cap)
    player.finish()
    return player.footprint()


def history(
    stream: AllocationStream, settings: AllocatorSettings | None = None, cap: int | None = None
) -> list[tuple[int, int]]:
    """(allocated, reserved) bytes after each event, up to the one that ran out of memory."""
    player = ReplayRun(ReplayPlan(stream, settings or AllocatorSettings()), cap)
    steps: list[tuple[int, int]] = []
    for event in range(len(stream.events)):
        if not player.advance(event + 1):
            break
        steps.append((player.cache.allocated * UNIT, player.cache.reserved * UNIT))
    return steps


class ReplayRun:
    """A replay in progress: `at` events have been replayed, and the first `stop` stops passed.

    `states`: the allocator's state at each mark so far.
    """

    __slots__ = ("at", "cache", "failed_at", "peak", "peak_reserved", "phases", "states", "stop")

    def __init__(self, plan: ReplayPlan, cap: int | None = None) -> None:
        self.cache = AllocatorState(plan, cap)
        self.at = self.stop = self.peak = self.peak_reserved = 0
        self.failed_at: int | None = None
        self.phases: dict[str, ReplayPhase] = {}
        self.states: list[MarkState] = []

    def copy(self) -> ReplayRun:
        """A copy, to be continued under another cap."""
        twin = ReplayRun(self.cache.plan)
        twin.cache, twin.phases = self.cache.copy(), dict(self.phases)
        twin.states = list(self.states)
        for name in ("at", "failed_at", "peak", "peak_reserved", "stop"):
            setattr(twin, name, getattr(self, name))
        return twin

    def finish(self) -> bool:
        """Replay to the end; returns whether memory sufficed."""
        return self.advance(len(self.cache.plan.events))

    def advance(self, end: int) -> bool:
        """Replay the events before `end`, and the stops among them; whether memory sufficed."""
        stops = self.cache.plan.stops
        while self.stop < len(stops) and stops[self.stop][0] <= end:
            at, name = stops[self.stop]
            if not self._play(at):
                return False
            self.stop += 1
            self.cache.free_kept(at if name is None else NEVER)
            if name == EMPTY:
                release_cached(self.cache)
            elif name is not None:
                self._mark(name)
                self._skip_repeats(end)
        return self._play(end)

    def _play(self, end: int) -> bool:
        """Replay the events before `end`, with no stop among them."""
        cache, events = self.cache, self.cache.plan.events
        if end - self.at == 1 and not cache.plan.units[max(events[self.at], ~events[self.at])]:
            self.at = end  # a tensor without bytes
        if self.at < end:
            self.at += play_events(cache, events[self.at : end])
        if self.at < end:
            self.failed_at = self.at
        return self.at >= end

    def _mark(self, name: str) -> None:
        """End a phase: keep its statistics, and reset the peaks."""
        cache = self.cache
        self.phases[name] = ReplayPhase(
            cache.peak * UNIT, cache.allocated * UNIT, cache.peak_reserved * UNIT
        )
        self.keep_peaks()
        cache.peak, cache.peak_reserved = cache.allocated, cache.reserved
        self.states.append(MarkState.of(cache, self.states[-1] if self.states else None))

    def _skip_repeats(self, end: int) -> None:
        """Skip windows before `end` that would repeat the one that a mark has just ended."""
        plan, tensors = self.cache.plan, self.cache.tensors
        while window := repeated_window(plan, tensors, self.states, end):
            repeated = self.states[-window.marks :]
            self.cache.retries += repeated[-1].retries - self.states[-window.marks - 1].retries
            for mark, state in enumerate(repeated, len(self.states)):
                self.phases[plan.marks[mark][1]] = self.phases[plan.marks[mark - window.marks][1]]
                self.states.append(state)
            tensors[window.tensors] = tensors[window.tensors_before]
            self.at, self.stop = plan.marks[mark][0], plan.mark_stops[mark] + 1

    def keep_peaks(self) -> None:
        """Update the peaks of the whole stream."""
        self.peak = max(self.peak, self.cache.peak)
        self.peak_reserved = max(self.peak_reserved, self.cache.peak_reserved)

    def footprint(self) -> Footprint:
        """The result so far."""
        self.keep_peaks()
        return Footprint(
            allocated_bytes=self.peak * UNIT,
            reserved_bytes=self.peak_reserved * UNIT,
            phases=self.phases,
            retries=self.cache.retries,
            failed_at=self.failed_at,
        )
