"""Bars of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .lines import Line, gib

FULL, EMPTY, LIMIT = "█", "░", "│"


def bar(value: float, full: float, width: int) -> str:
    """A bar of length width × value / full; at least one character for a value above 0."""
    if value <= 0 or full <= 0:
        return ""
    return FULL * min(width, max(1, round(width * value / full)))


def part_row(left: str, size: int, most: int, style: str, figure: int, width: int) -> Line:
    """A row of a table of parts: GiB in `figure` columns, and a bar of at most `width`."""
    return [(left, ""), (gib(size, 2).rjust(figure), ""), (f"  {bar(size, most, width)}", style)]


def gauge(share: float, width: int) -> str:
    """A bar with a filled part of `share` and an empty part; completely filled above 1."""
    filled = min(width, max(0, round(width * share)))
    return FULL * filled + EMPTY * (width - filled)


def stack_widths(values: Sequence[int], full: int, width: int) -> list[int]:
    """The number of characters for each part; their sum is the rounded sum, so bars align."""
    ends = [0]
    total = 0
    for value in values:
        total += value
        ends.append(round(width * total / full) if full else 0)
    return [b - a for a, b in pairwise(ends)]
