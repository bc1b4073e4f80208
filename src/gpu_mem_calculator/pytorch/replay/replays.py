"""Replays of a stream: in C where that is to be had, else in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .footprint import Footprint
from .plan import ReplayPlan
from .rounding import UNIT
from .settings import AllocatorSettings
from .stream import AllocationStream

if TYPE_CHECKING:
    from .allocator import ReplayRun
    from .native import NativeRun


def replay(
    stream: AllocationStream, settings: AllocatorSettings | None = None, cap: int | None = None
) -> Footprint:
    """Replay a stream; `cap`: most bytes that may be reserved (torch's memory fraction)."""
    player = start_replay(ReplayPlan(stream, settings or AllocatorSettings()), cap)
    player.finish()
    return player.footprint()


def history(
    stream: AllocationStream, settings: AllocatorSettings | None = None, cap: int | None = None
) -> list[tuple[int, int]]:
    """(allocated, reserved) bytes after each event, up to the one that ran out of memory."""
    player = start_replay(ReplayPlan(stream, settings or AllocatorSettings()), cap)
    steps: list[tuple[int, int]] = []
    for event in range(len(stream.events)):
        if not player.advance(event + 1):
            break
        steps.append((player.allocated * UNIT, player.reserved * UNIT))
    return steps


def start_replay(plan: ReplayPlan, cap: int | None = None) -> ReplayRun | NativeRun:
    """A replay from the start, in C where that is to be had; `cap`: in bytes."""
    if plan.native:
        return plan.native.start(cap)
    from .allocator import ReplayRun  # with all that a replay in C does without

    return ReplayRun(plan, cap)
