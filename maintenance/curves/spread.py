"""How far a compact curve is from the rows that it is derived from."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median, quantiles


def digits(value: float) -> float:
    """A value with three significant digits."""
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded == int(rounded) else rounded


def spread(pairs: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Median and 90th percentile of the error in percent, and the median with its sign."""
    errors = [100 * (predicted - measured) / measured for predicted, measured in pairs]
    sizes = [abs(error) for error in errors]
    return {
        "rows": len(errors),
        "median_pct": round(median(sizes), 2),
        "p90_pct": round(quantiles(sizes, n=10)[-1], 2),
        "bias_pct": round(median(errors), 2),
    }
