"""Elements of SVG pictures, and the round values of their axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

CHARACTER = 0.58  # average width of a character, in font sizes


class PlotFrame(Struct, frozen=True):
    """The position of the plot in the picture, and its scale: `top_bytes` at its top, `low_bytes`
    at its bottom.
    """

    left: float
    top: float
    width: float
    height: float
    num_columns: int
    top_bytes: float
    low_bytes: float = 0

    @property
    def step(self) -> float:
        """The width of one column."""
        return self.width / self.num_columns

    @property
    def bottom(self) -> float:
        """The y coordinate of the lowest bytes."""
        return self.top + self.height

    def y(self, num_bytes: float) -> float:
        """The y coordinate of a number of bytes."""
        share = (num_bytes - self.low_bytes) / (self.top_bytes - self.low_bytes)
        return self.bottom - self.height * max(0.0, share)


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
