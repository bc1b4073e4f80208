"""Replay a stream of allocations and frees through a model of torch's CUDA caching allocator."""

from __future__ import annotations

from msgspec import Struct

from .blocks import NEVER
from .cache import AllocatorState
from .growth import release_cached
from .plan import EMPTY, ReplayPlan
from .play import play
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
    """Between two marks: what torch's statistics say at its end when they are reset at each mark.

    `peak_bytes` and `reserved_bytes` are max_memory_allocated and max_memory_reserved,
    `start_next_bytes` is memory_allocated.
    """

    peak_bytes: int
    start_next_bytes: int
    reserved_bytes: int


class Footprint(Struct, frozen=True):
    """What a run takes: peaks of the whole stream, each phase, and where it ran out of memory.

    `retries` counts num_alloc_retries: how often all cached segments were given back.
    """

    allocated_bytes: int
    reserved_bytes: int
    phases: dict[str, ReplayPhase]
    retries: int = 0
    failed_at: int | None = None


def replay(
    stream: AllocationStream, settings: AllocatorSettings | None = None, cap: int | None = None
) -> Footprint:
    """Play a stream; `cap` is the most bytes that may be reserved (torch's memory fraction)."""
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
    """Plays a plan from cut to cut."""

    __slots__ = ("at", "cache", "cut", "failed_at", "peak", "peak_reserved", "phases")

    def __init__(self, plan: ReplayPlan, cap: int | None = None) -> None:
        self.cache = AllocatorState(plan, cap)
        self.at = self.cut = self.peak = self.peak_reserved = 0
        self.failed_at: int | None = None
        self.phases: dict[str, ReplayPhase] = {}

    def copy(self) -> ReplayRun:
        """The same state again."""
        twin = ReplayRun(self.cache.plan)
        twin.cache, twin.phases = self.cache.copy(), dict(self.phases)
        for name in ("at", "cut", "failed_at", "peak", "peak_reserved"):
            setattr(twin, name, getattr(self, name))
        return twin

    def finish(self) -> bool:
        """Play to the end; whether it survived."""
        return self.advance(len(self.cache.plan.events))

    def advance(self, end: int) -> bool:
        """Play the events before `end`, and the cuts among them; whether it survived."""
        cuts = self.cache.plan.cuts
        while self.cut < len(cuts) and cuts[self.cut][0] <= end:
            at, name = cuts[self.cut]
            if not self._play(at):
                return False
            self.cut += 1
            self.cache.bring_back(at if name is None else NEVER)
            if name == EMPTY:
                release_cached(self.cache)
            elif name is not None:
                self._mark(name)
        return self._play(end)

    def _play(self, end: int) -> bool:
        """Play the events up to `end`, none of which is at a cut."""
        cache, events = self.cache, self.cache.plan.events
        if end - self.at == 1 and not cache.plan.units[max(events[self.at], ~events[self.at])]:
            self.at = end  # a tensor without bytes
        if self.at < end:
            self.at += play(cache, events[self.at : end])
        if self.at < end:
            self.failed_at = self.at
        return self.at >= end

    def _mark(self, name: str) -> None:
        """End a phase."""
        cache = self.cache
        self.phases[name] = ReplayPhase(
            cache.peak * UNIT, cache.allocated * UNIT, cache.peak_reserved * UNIT
        )
        self.keep_peaks()
        cache.peak, cache.peak_reserved = cache.allocated, cache.reserved

    def keep_peaks(self) -> None:
        """The peaks of the whole stream so far."""
        self.peak = max(self.peak, self.cache.peak)
        self.peak_reserved = max(self.peak_reserved, self.cache.peak_reserved)

    def footprint(self) -> Footprint:
        """What was found."""
        self.keep_peaks()
        return Footprint(
            allocated_bytes=self.peak * UNIT,
            reserved_bytes=self.peak_reserved * UNIT,
            phases=self.phases,
            retries=self.cache.retries,
            failed_at=self.failed_at,
        )
