"""The Pareto front of plans as a small picture of characters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..lines import DIM, Line, line
from .amounts import seconds_text
from .figures import plan_axes

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plans

NAMED = 10  # ranks that are written; the others of the front are bullets
HEIGHT, LABEL = 7, 9  # rows of the picture, and columns left of it


def front_lines(plans: Plans, width: int) -> Iterator[Line]:
    """The picture; nothing for one plan. The first of the front have their ranks."""
    front = [plans.plans[i] for i in plans.front]
    if len(front) < 2:
        return
    across, up = plan_axes(plans.plans)
    columns = width - LABEL - 2
    rows = [[" "] * columns for _ in range(HEIGHT)]
    others = [one for one in plans.plans if one not in front]
    for one in (*others, *sorted(front, key=lambda plan: -plan.rank)):
        text = "·" if one not in front else str(one.rank) if one.rank <= NAMED else "•"
        x = round(across.share(across.value(one)) * (columns - len(text)))
        y = round((1 - up.share(up.value(one))) * (HEIGHT - 1))
        rows[y][x : x + len(text)] = text
    ends = {0: up.high, HEIGHT - 1: up.low}
    for y, row in enumerate(rows):
        label = f"{seconds_text(ends[y])} {up.unit}".rstrip() if y in ends else ""
        yield [(label.rjust(LABEL) + " │", DIM), ("".join(row).rstrip(), "")]
    left, right = f"{seconds_text(across.low)} {across.unit}", f"{seconds_text(across.high)}"
    right += f" {across.title}"
    yield line(" " * (LABEL + 2) + left + right.rjust(columns - len(left)), DIM)
