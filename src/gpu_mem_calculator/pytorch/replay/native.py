"""The replay in C, where its library was built: the same figures, many times as fast.

A replay is one call, which other threads need not wait for.
"""

from __future__ import annotations

import sys
from array import array
from ctypes import CDLL, Structure, byref, c_double, c_int, c_int64, c_void_p
from itertools import chain
from typing import TYPE_CHECKING, Any

from .blocks import LARGEST
from .footprint import CapOutcome, Footprint, ReplayPhase
from .rounding import UNIT
from .settings import INTERVALS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .plan import ReplayPlan

NO_MEMORY, BAD_STREAM = -1, -2


class NativeStream(Structure):
    """gmc_stream."""

    _fields_ = (
        *((name, c_int64) for name in ("tensors", "events", "marks", "empties", "uses")),
        *((name, c_void_p) for name in ("sizes", "event", "streams", "mark", "empty", "use")),
    )


class NativeSettings(Structure):
    """gmc_settings."""

    _fields_ = (
        *((name, c_int64) for name in ("expandable", "maps_pages", "oversize", "unsplit")),
        *((name, c_int64) for name in ("rounding", "large_segment", "intervals")),
        ("divisions", c_void_p),
        ("collect_above", c_double),
    )


class NativeFigures(Structure):
    """gmc_figures."""

    at: int
    failed: int
    cap: int
    allocated: int
    reserved: int
    peak: int
    peak_reserved: int
    retries: int
    most_under: int
    least_over: int
    marks: int
    _fields_ = tuple((name, c_int64) for name in __annotations__)


class NativePlan:
    """gmc_plan, with the arrays that it reads, which cannot grow as long as it lives."""

    __slots__ = ("_arrays", "_plan", "_stream", "library", "plan")

    def __init__(self, plan: ReplayPlan, library: CDLL) -> None:
        self._plan = c_void_p()
        self.plan, self.library, stream = plan, library, plan.stream
        self._arrays = {
            "sizes": _view(stream.sizes),
            "event": _view(stream.events),
            "streams": _view(stream.streams),
            "mark": _view([at for at, _ in stream.marks]),
            "empty": _view(stream.empties),
            "use": _view(list(chain.from_iterable(stream.uses))),
            "divisions": _view(plan.settings.roundup_power2_divisions),
        }
        addresses = {name: _address(view) for name, view in self._arrays.items()}
        settings = NativeSettings(
            expandable=plan.settings.expandable_segments,
            maps_pages=plan.maps_pages,
            oversize=plan.oversize,
            unsplit=plan.unsplit,
            rounding=plan.rounding,
            large_segment=plan.large_segment,
            intervals=INTERVALS,
            divisions=addresses.pop("divisions"),
            collect_above=plan.settings.garbage_collection_threshold if plan.collects else 0.0,
        )
        whole = NativeStream(
            tensors=len(stream.sizes),
            events=len(stream.events),
            marks=len(stream.marks),
            empties=len(stream.empties),
            uses=len(stream.uses),
            **addresses,
        )
        outcome = c_int()
        opened = library.gmc_plan_open(byref(whole), byref(settings), byref(outcome))
        _check(outcome.value)
        self._plan = c_void_p(opened)

    def __del__(self) -> None:
        """Give back what C has."""
        if self._plan:
            self.library.gmc_plan_close(self._plan)

    def start(self, cap: int | None) -> NativeRun:
        """A replay from the start; `cap`: in bytes."""
        limit = c_int64(LARGEST if cap is None else cap // UNIT)
        collects = self.plan.collects and cap is not None
        return NativeRun(self, self.library.gmc_open(self._plan, limit, collects))

    @property
    def most_alive(self) -> int:
        """The peak of the tensors alive, in units."""
        return int(self.library.gmc_most_alive(self._plan))

    def first_beyond(self, units: int) -> int:
        """The first event after which more than `units` are alive."""
        return int(self.library.gmc_first_beyond(self._plan, c_int64(units)))

    def most_slack(self, begin: int) -> int:
        """The most bytes by which live blocks can exceed their tensors after `begin` events."""
        return int(self.library.gmc_most_slack(self._plan, c_int64(begin)))


def _check(outcome: int) -> None:
    if outcome == BAD_STREAM:
        raise ValueError("an event of the stream is of a tensor that is not there, or not alive")
    if outcome == NO_MEMORY:
        raise MemoryError("the replay's own memory ran out")


def _view(values: Any) -> memoryview:
    """The values as 64-bit integers."""
    return memoryview(values if isinstance(values, array) else array("q", values))


def _address(view: memoryview) -> int | None:
    """Where C finds them; None for none."""
    return view.obj.buffer_info()[0] if len(view) else None  # type: ignore[attr-defined]


class NativeRun:
    """A replay in progress, as `ReplayRun` is one in Python."""

    __slots__ = ("_plan", "_state", "figures")

    def __init__(self, plan: NativePlan, state: int | None) -> None:
        self._plan, self._state, self.figures = plan, c_void_p(state), NativeFigures()
        _check(1 if state else NO_MEMORY)
        self._read()

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        """Give back what C has; at the end of the process the system does, and C may be gone."""
        if self._state and not at_exit():
            self._plan.library.gmc_close(self._state)

    def _read(self) -> None:
        self._plan.library.gmc_read(self._state, byref(self.figures))

    def copy(self) -> NativeRun:
        """A copy, to be continued under another cap."""
        return NativeRun(self._plan, self._plan.library.gmc_copy(self._state))

    def limit(self, cap: int, *, elastic: bool = False, waits: bool = False) -> None:
        """Go on under a cap, as `ReplayRun` does."""
        self._plan.library.gmc_limit(self._state, c_int64(cap), elastic, waits)
        self._read()

    def finish(self) -> bool:
        """Replay to the end; returns whether memory sufficed."""
        return self.advance(len(self._plan.plan.stream.events))

    def advance(self, end: int) -> bool:
        """Replay the events before `end`; whether memory sufficed."""
        outcome = self._plan.library.gmc_advance(self._state, c_int64(end))
        _check(outcome)
        self._read()
        return bool(outcome)

    @property
    def at(self) -> int:
        """How many events have been replayed."""
        return self.figures.at

    @property
    def cap(self) -> int:
        """The most units that may be reserved."""
        return self.figures.cap

    @property
    def allocated(self) -> int:
        """Units allocated now."""
        return self.figures.allocated

    @property
    def reserved(self) -> int:
        """Units reserved now."""
        return self.figures.reserved

    def outcome(self) -> CapOutcome:
        """The outcome under the cap."""
        found = self.figures
        failed_at = found.at if found.failed else None
        return CapOutcome(found.most_under, found.least_over, failed_at, found.peak_reserved)

    def footprint(self) -> Footprint:
        """The result so far."""
        found, plan = self.figures, self._plan
        of = plan.library.gmc_phases(self._state)[: 3 * found.marks]
        phases = zip(of[::3], of[1::3], of[2::3], strict=True)
        return Footprint(
            allocated_bytes=found.peak * UNIT,
            reserved_bytes=found.peak_reserved * UNIT,
            phases={
                name: ReplayPhase(*(units * UNIT for units in phase))
                for (_, name), phase in zip(plan.plan.marks, phases, strict=False)
            },
            retries=found.retries,
            failed_at=found.at if found.failed else None,
        )
