"""The least memory that a run survives in: the smallest cap that the allocator can live with.

A replay under a cap is the same as one without until reserved memory would first pass the cap, so
all replays start where the lowest cap is first passed. An elastic replay, which raises its cap
wherever it would fail, gives a cap to begin with; the rest is bisection.
"""

from __future__ import annotations

from collections.abc import Callable

from .allocator import ReplayRun
from .plan import ReplayPlan
from .rounding import UNIT
from .settings import AllocatorSettings
from .stream import AllocationStream

CLOSE = 0.003
"""How close the answer comes to the least cap, as a share."""


APART, PROBES = 0.02, 2
"""A run may survive in less and die in more, since other blocks are then cut. So many caps above
the least one are tried, so far apart: the answer lies above those that fail."""


def needs_bytes(
    stream: AllocationStream, settings: AllocatorSettings | None = None, reserved: int | None = None
) -> int:
    """The least cap (to 0.3 %) from which on the whole stream survives.

    What torch calls out of memory is decided by reserved memory alone, so the CUDA context and
    other users of the card come on top. `reserved` is what is reserved without a cap, where that
    is known: more is never needed.
    """
    plan = ReplayPlan(stream, settings or AllocatorSettings())
    low = _live_units(plan) - 1
    start = _until(ReplayRun(plan), low + 1)
    high = _play(start, low + 1, elastic=True).cache.cap
    step = max(int(high * CLOSE), 1)
    near = _until(start, high - step)

    def survives(cap: int) -> bool:
        return _play(near if cap >= near.cache.cap else start, cap).failed_at is None

    while (player := _play(near, high)).failed_at is not None:
        low, high, step = high, high + step, 2 * step
    if plan.is_plain and not player.cache.passed:  # the same as without a cap
        high = min(high, player.peak_reserved)
    while low < high - step and survives(high - step):
        high, step = high - step, 2 * step
    low = max(low, high - step)
    high = _bisected(low, high, survives)
    apart = max(int(high * APART), 1)
    caps = [high + apart * number for number in range(1, PROBES + 1)]
    most = caps[-1] if reserved is None else reserved // UNIT
    dies = [cap for cap in caps if cap < most and not survives(cap)]
    return (_bisected(dies[-1], dies[-1] + apart, survives) if dies else high) * UNIT


def _bisected(low: int, high: int, survives: Callable[[int], bool]) -> int:
    """Between a cap that is too low and one that is enough."""
    while high - low > max(high * CLOSE, 1):
        middle = (high + low) // 2
        low, high = (low, middle) if survives(middle) else (middle, high)
    return high


def _live_units(plan: ReplayPlan) -> int:
    """Peak of what is alive, each tensor at its rounded size: no cap below it is enough (but for
    part of a page by which expandable segments may pass theirs).
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


def _until(start: ReplayRun, cap: int) -> ReplayRun:
    """Played on to where `cap` would first be passed, with nothing given back yet.

    Collecting garbage depends on the cap from the start, so then nothing is played.
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


def _play(start: ReplayRun, cap: int, elastic: bool = False) -> ReplayRun:
    """Played on from there to the end under a cap."""
    player = start.copy()
    player.cache.cap, player.cache.elastic = cap, elastic
    player.finish()
    player.keep_peaks()
    return player
