"""Lengths drawn from what is known of a data set: bounds, percentiles, a histogram."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

Z99 = 2.3263478740408408  # the 99th percentile of a standard normal distribution
Draw = Callable[["Random"], int]


def uniform(low: int, high: int) -> Draw:
    """Every length from `low` to `high` is as likely as another."""
    return lambda random: random.randint(low, high)


def log_normal(median: float, p99: float) -> Draw:
    """Lengths whose logarithm is normally distributed, by their median and 99th percentile."""
    spread = log(p99 / median) / Z99
    return lambda random: max(1, round(median * exp(spread * random.gauss(0.0, 1.0))))


def histogram(bins: Sequence[tuple[int, int, float]]) -> Draw:
    """Bins of a low and a high length and their weight; inside one, all lengths are as likely."""
    ends = list(accumulate(weight for _, _, weight in bins))

    def draw(random: Random) -> int:
        found = min(bisect_right(ends, random.random() * ends[-1]), len(bins) - 1)
        low, high, _ = bins[found]
        return random.randint(low, high)

    return draw
