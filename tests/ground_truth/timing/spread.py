"""How far measured steps are from their estimates: what the factors of the interval come from.

Runs are split into two halves by a hash of their id. The first half gives the factors of
`timing/training/interval.py`, the second one checks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from .score import Predicted

WITHIN = 0.8  # share of measured steps that lie between low and high


def first_half(row_id: str) -> bool:
    """Whether a row is one of those that the factors were estimated from."""
    return sha256(row_id.encode()).digest()[0] % 2 == 0


def factors(found: Iterable[Predicted], within: float = WITHIN) -> tuple[float, float]:
    """The shares of the estimate between which `within` of the measured steps lie.

    As much lies below as above, and every source counts the same, whatever its number of rows.
    """
    by_source: dict[str, list[float]] = {}
    for one in found:
        by_source.setdefault(one.run.source, []).append(one.run.seconds / one.estimate)
    weighed = sorted((ratio, 1 / len(ratios)) for ratios in by_source.values() for ratio in ratios)
    tail = (1 - within) / 2
    return quantile(weighed, tail), quantile(weighed, 1 - tail)


def quantile(weighed: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which a share of the weight lies."""
    wanted = share * sum(weight for _, weight in weighed)
    passed = 0.0
    for value, weight in weighed:
        passed += weight
        if passed >= wanted:
            return value
    return weighed[-1][0]


def covered(found: Sequence[Predicted], bounds: tuple[float, float]) -> float:
    """The share in percent of measured steps that lie between two factors of their estimates."""
    low, high = bounds
    inside = [low <= one.run.seconds / one.estimate <= high for one in found]
    return 100 * sum(inside) / len(inside)


def left_out_coverage(by_source: Mapping[str, Sequence[Predicted]]) -> dict[str, float]:
    """For each source, the share of its runs inside the factors of all other sources."""
    found = {}
    for source, runs in by_source.items():
        others = [one for name, each in by_source.items() if name != source for one in each]
        if others:
            found[source] = covered(runs, factors(others))
    return found
