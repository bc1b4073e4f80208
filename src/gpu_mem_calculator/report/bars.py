"""Bars made of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

FULL, EMPTY, LIMIT = "█", "░", "│"


def bar(value: float, full: float, width: int) -> str:
    """A bar as long as its share; anything above nothing shows at least a mark."""
    if value <= 0 or full <= 0:
        return ""
    return FULL * min(width, max(1, round(width * value / full)))


def gauge(share: float, width: int) -> str:
    """A filled and an empty part; more than everything is all filled."""
    filled = min(width, max(0, round(width * share)))
    return FULL * filled + EMPTY * (width - filled)


def stacked(values: Sequence[int], full: int, width: int) -> list[int]:
    """How many characters each part gets; their sum is the rounded sum, so rows line up."""
    ends = [0]
    total = 0
    for value in values:
        total += value
        ends.append(round(width * total / full) if full else 0)
    return [b - a for a, b in pairwise(ends)]
