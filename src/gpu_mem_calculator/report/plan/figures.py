"""The figures of plans: the columns of their table, the axes of their picture.

Training shows memory against the time of a step, a server its latency against its throughput.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ...ledger.units import GIB, count, gib
from ..svg import round_step, round_values
from .amounts import card_bytes, rate_text, seconds_text

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan, PlanSeconds

SPARE = 0.06  # share of an axis that is free on both sides
MOST_TICKS = 6
LOG_FROM = 8  # times; with a wider range of values an axis is logarithmic
MILLI = 1e3


class PlanColumn(Struct, frozen=True):
    """A column of the table of plans: its head, and its text for a plan; `optional`: left out
    where all plans have the same.
    """

    head: str
    text: Callable[[Plan], str]
    optional: bool = False


class PlotAxis(Struct, frozen=True):
    """An axis: its title and unit, the value of a plan on it, and the values at its ends.

    It is logarithmic if the larger end is many times the smaller.
    """

    title: str
    unit: str
    value: Callable[[Plan], float]
    low: float
    high: float

    @property
    def is_log(self) -> bool:
        """Whether the axis is logarithmic."""
        return self.low > 0 and self.high / self.low > LOG_FROM

    def share(self, value: float) -> float:
        """The position of a value, 0 to 1."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values between the ends."""
        if self.is_log:
            return round_values(self.low, self.high)
        length = self.high - self.low
        step = round_step(length, 4, MOST_TICKS)
        return [i * step for i in range(math.ceil(self.low / step), int(self.high / step) + 1)]


def plan_columns(plans: Sequence[Plan]) -> list[PlanColumn]:
    """The columns of figures of these plans."""
    columns = SERVING if plans[0].serving is not None else TRAINING
    return [one for one in columns if not one.optional or _differs(one, plans)]


def _differs(column: PlanColumn, plans: Sequence[Plan]) -> bool:
    found = set(map(column.text, plans))
    return len(found) > 1 or (len(plans) == 1 and found != {""})


def plan_axes(plans: Sequence[Plan]) -> tuple[PlotAxis, PlotAxis]:
    """The axes of a picture of plans: to the right, and upwards."""
    if plans[0].serving is not None:
        return (
            _axis("milliseconds per output token", "ms", _milliseconds, plans),
            _axis("output tokens/s per GPU", "", _per_gpu, plans),
        )
    return (
        _axis("GiB per GPU", "GiB", lambda p: card_bytes(p) / GIB, plans),
        _axis("seconds of a step", "s", lambda p: p.step_seconds.estimate, plans),
    )


def _axis(title: str, unit: str, value: Callable[[Plan], float], plans: Sequence[Plan]) -> PlotAxis:
    values = [value(one) for one in plans]
    low, high = min(values), max(values)
    if low > 0 and high / low > LOG_FROM:
        return PlotAxis(title, unit, value, low / 1.15, high * 1.15)
    spare = SPARE * (high - low) or 0.1 * high or 1.0
    return PlotAxis(title, unit, value, max(0.0, low - spare), high + spare)


def _milliseconds(plan: Plan) -> float:
    return MILLI * plan.step_seconds.estimate


def _per_gpu(plan: Plan) -> float:
    return plan.tokens_per_second / (plan.serving.gpus if plan.serving else 1)


def interval(step: PlanSeconds, scale: float = 1.0) -> str:
    """An estimate with its interval: `12.4 (11.1–13.8)`."""
    estimate, low, high = (seconds_text(scale * s) for s in (step.estimate, step.low, step.high))
    return f"{estimate} ({low}–{high})"


def _first_token(plan: Plan) -> str:
    return seconds_text(plan.serving.first_token_seconds.estimate) if plan.serving else ""


def _price(plan: Plan) -> str:
    cost = plan.serving.cost_per_million_tokens if plan.serving else None
    return "" if cost is None else f"{cost:.3g}"


MEMORY = PlanColumn("GiB", lambda p: gib(card_bytes(p)))
SPEED = PlanColumn("tok/s", lambda p: rate_text(p.tokens_per_second))
TRAINING = (
    MEMORY,
    PlanColumn("step s", lambda p: interval(p.step_seconds)),
    SPEED,
    PlanColumn("MFU %", lambda p: f"{100 * p.mfu:.1f}"),
    PlanColumn("cost", lambda p: "" if p.cost is None else count(round(p.cost)), optional=True),
)
SERVING = (
    MEMORY,
    PlanColumn("ms/token", lambda p: interval(p.step_seconds, MILLI)),
    SPEED,
    PlanColumn("users", lambda p: f"{p.serving.users:,}" if p.serving else "", optional=True),
    PlanColumn("first s", _first_token),
    PlanColumn("cost/M", _price, optional=True),
)
