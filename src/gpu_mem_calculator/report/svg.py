"""Elements of SVG pictures, and the round values of their axes."""

from __future__ import annotations

import math
from collections.abc import Sequence


def svg_text(x: object, y: object, words: object, *, kind: str = "", anchor: str = "") -> str:
    """A text at a point, which is written as it is given; `kind` is its class."""
    attributes = {"class": kind, "x": x, "y": y, "text-anchor": anchor}
    given = "".join(f' {name}="{value}"' for name, value in attributes.items() if value != "")
    return f"<text{given}>{words}</text>"


def round_step(length: float, fewest: float, most: int) -> float:
    """A step of 1, 2 or 5 times a power of ten, `fewest` to `most` of which are in a length."""
    size: float = 10.0 ** math.floor(math.log10(length / fewest))
    return next(size * m for m in (1, 2, 5, 10) if length / (size * m) <= most)


def round_values(low: float, high: float, steps: Sequence[int] = (1, 2, 5)) -> list[float]:
    """Round values of a logarithmic axis: some multiples of each power of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**power for power in powers for m in steps if low <= m * 10.0**power <= high]
