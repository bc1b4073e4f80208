"""The least memory that a run survives in: the smallest cap under which no allocation fails.

A replay under a cap equals one without until reserved memory would first exceed the cap, so all
replays start where the lowest cap is first exceeded. An elastic replay, which raises its cap
wherever it would fail, gives the first cap to try; the rest is bisection.
"""

from __future__ import annotations

from collections.abc import Callable

from .allocator import ReplayRun
from .plan import ReplayPlan
from .rounding import UNIT
from .settings import AllocatorSettings
from .stream import AllocationStream

CLOSE = 0.003
"""Tolerance of the answer, as a share of it."""


APART, PROBES = 0.02, 2
"""A run may survive under one cap and fail under a higher one, because other blocks are then split.
So PROBES caps above the least one are tried, APART from each other as a share of it: the answer is
above those that fail."""


def needs_bytes(
    stream: AllocationStream, settings: AllocatorSettings | None = None, reserved: int | None = None
) -> int:
    """The least cap in bytes, to 0.3 %, under which the whole stream survives.

    Torch's out-of-memory errors depend on reserved memory alone, so the CUDA context and other
    users of the card come on top. `reserved`: bytes reserved without a cap, if known; more is
    never needed.
    """
    plan = ReplayPlan(stream, settings or AllocatorSettings())
    low = _live_units(plan) - 1
    start = _replay_until(ReplayRun(plan), low + 1)
    high = _replay_rest(start, low + 1, elastic=True).cache.cap
    step = max(int(high * CLOSE), 1)
    near = _replay_until(start, high - step)

    def survives(cap: int) -> bool:
        return _replay_rest(near if cap >= near.cache.cap else start, cap).failed_at is None

    while (player := _replay_rest(near, high)).failed_at is not None:
        low, high, step = high, high + step, 2 * step
    if plan.is_plain and not player.cache.exceeded:  # the same as without a cap
        high = min(high, player.peak_reserved)
    while low < high - step and survives(high - step):
        high, step = high - step, 2 * step
    low = max(low, high - step)
    high = _bisect(low, high, survives)
    apart = max(int(high * APART), 1)
    caps = [high + apart * number for number in range(1, PROBES + 1)]
    most = caps[-1] if reserved is None else reserved // UNIT
    failing = [cap for cap in caps if cap < most and not survives(cap)]
    return (_bisect(failing[-1], failing[-1] + apart, survives) if failing else high) * UNIT


def _bisect(low: int, high: int, survives: Callable[[int], bool]) -> int:
    """The least cap that suffices, between `low`, which does not, and `high`, which does."""
    while high - low > max(high * CLOSE, 1):
        middle = (high + low) // 2
        low, high = (low, middle) if survives(middle) else (middle, high)
    return high


def _live_units(plan: ReplayPlan) -> int:
    """Peak of the tensors alive, each at its rounded size: no cap below it suffices (except for
    the part of a page by which expandable segments may exceed theirs).
    """
    units, alive, peak = plan.units, 0, 0
    for event in plan.events:
        if event >= 0:
            alive += units[event]
            if alive > peak:
                peak = alive
        else:
            alive -= units[~event]
    return peak


def _replay_until(start: ReplayRun, cap: int) -> ReplayRun:
    """Continue to where `cap` would first be exceeded, before anything is released.

    Garbage collection depends on the cap from the start, so with it nothing is replayed.
    """
    player = start.copy()
    cache = player.cache
    cache.cap, cache.waits = cap, True
    if cache.plan.collects:
        cache.ages = {}
    else:
        player.finish()
    cache.waits, player.failed_at = False, None
    return player


def _replay_rest(start: ReplayRun, cap: int, elastic: bool = False) -> ReplayRun:
    """Continue to the end under a cap."""
    player = start.copy()
    player.cache.cap, player.cache.elastic = cap, elastic
    player.finish()
    player.keep_peaks()
    return player
