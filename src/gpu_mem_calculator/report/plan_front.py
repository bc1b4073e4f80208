"""The Pareto front of plans, memory against time, as a small picture of characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..ledger.units import GIB
from .lines import DIM, Line, line
from .plan_words import card_bytes, seconds_text

if TYPE_CHECKING:
    from ..planner.plans import Plan, Plans

HEIGHT, LABEL = 7, 8  # rows of the picture, and columns left of it


def front_plans(plans: Plans) -> list[Plan]:
    """The plans of the front, least memory first."""
    return sorted((plans.plans[i] for i in plans.front), key=card_bytes)


def front_lines(plans: Plans, width: int) -> Iterator[Line]:
    """The picture: time upwards, memory to the right, each plan its rank; nothing for one plan.

    Plans of the front have their ranks, the others are dots.
    """
    front = front_plans(plans)
    if len(front) < 2:
        return
    columns = width - LABEL - 2
    memory = _scale([card_bytes(one) for one in plans.plans])
    time = _scale([one.step_seconds.estimate for one in plans.plans])
    rows = [[" "] * columns for _ in range(HEIGHT)]
    others = [one for one in plans.plans if one not in front]
    for one in (*others, *sorted(front, key=lambda plan: -plan.rank)):
        x = _place(card_bytes(one), memory, columns - 1)
        y = HEIGHT - 1 - _place(one.step_seconds.estimate, time, HEIGHT - 1)
        text = str(one.rank) if one in front else "·"
        x = min(x, columns - len(text))
        rows[y][x : x + len(text)] = text
    labels = {0: f"{seconds_text(time[1])} s", HEIGHT - 1: f"{seconds_text(time[0])} s"}
    for y, row in enumerate(rows):
        yield [(labels.get(y, "").rjust(LABEL) + " │", DIM), ("".join(row).rstrip(), "")]
    left, right = f"{memory[0] / GIB:.1f} GiB", f"{memory[1] / GIB:.1f} GiB per GPU"
    yield line(" " * (LABEL + 2) + left + right.rjust(columns - len(left)), DIM)


def _scale(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest value, apart."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low * 1.01 + 1e-9)


def _place(value: float, scale: tuple[float, float], last: int) -> int:
    low, high = scale
    return round(last * (value - low) / (high - low))
