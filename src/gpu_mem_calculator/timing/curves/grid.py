"""Values at the points of a grid, interpolated linearly between them.

One size gives a float, arrays of sizes give an array, by the same arithmetic: equal bit for bit.
numpy is imported only for arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

from ...ledger.num import larger, smaller

Size: TypeAlias = Any  # an int or a float, or an array of them
Value: TypeAlias = Any  # a float, or an array of floats


def is_array(number: Size) -> bool:
    """Whether a number is an array of numbers."""
    return hasattr(number, "shape")


class Axis:
    """The points of one axis in ascending order, two or more.

    Below the first point the first one counts. Above the last one the line through the last two
    continues if `continues`, otherwise the last one counts.
    """

    def __init__(self, points: Sequence[float], *, continues: bool) -> None:
        self.points = tuple(map(float, points))
        self.widths = tuple(b - a for a, b in zip(self.points, self.points[1:], strict=False))
        self.continues = continues

    @cached_property
    def _arrays(self) -> tuple[Any, Any]:
        """The points between the first and the last, and each point with the width after it."""
        import numpy

        points = numpy.asarray(self.points)
        return points[1:-1], numpy.stack([points[:-1], self.widths])

    def place(self, size: Size) -> tuple[Any, Value]:
        """The number of the point at or below a size, and the share of the way to the next one."""
        size = larger(size, self.points[0])
        if not self.continues:
            size = smaller(size, self.points[-1])
        if is_array(size):
            inner, cells = self._arrays
            index = inner.searchsorted(size, side="right")
            start, width = cells[:, index]
            return index, (size - start) / width
        number = bisect_right(self.points, size, 1, len(self.points) - 1) - 1
        return number, (size - self.points[number]) / self.widths[number]


class Grid:
    """A value for each point of the grid of some axes, the last axis running fastest."""

    def __init__(self, axes: Sequence[Axis], values: Sequence[float]) -> None:
        self.axes = tuple(axes)
        self.values = tuple(map(float, values))
        strides, size = [], 1
        for axis in reversed(self.axes):
            strides.append(size)
            size *= len(axis.points)
        if size != len(self.values):
            raise ValueError(f"a grid of {size} points has {len(self.values)} values")
        self.strides = tuple(reversed(strides))

    @cached_property
    def _array(self) -> Any:
        import numpy

        return numpy.asarray(self.values)

    def at(self, *sizes: Size) -> Value:
        """The value at one size for each axis; arrays broadcast."""
        places = [axis.place(size) for axis, size in zip(self.axes, sizes, strict=True)]
        first: Any = 0
        for (index, _), stride in zip(places, self.strides, strict=True):
            first = first + index * stride
        if is_array(first):
            return self._between(first, places)
        corners = [self.values[first + step] for step in self._steps]
        for _, share in reversed(places):
            pairs = zip(corners[::2], corners[1::2], strict=True)
            corners = [low + (high - low) * share for low, high in pairs]
        return corners[0]

    def _between(self, first: Any, places: list[tuple[Any, Value]]) -> Value:
        """`at` for arrays: all corners at once, by the same arithmetic."""
        corners = self._array[first[..., None] + self._array_steps]
        for _, share in reversed(places):
            low, high = corners[..., ::2], corners[..., 1::2]
            corners = low + (high - low) * (share[..., None] if is_array(share) else share)
        return corners[..., 0]

    @cached_property
    def _array_steps(self) -> Any:
        import numpy

        return numpy.asarray(self._steps)

    @cached_property
    def _steps(self) -> tuple[int, ...]:
        """From the lowest corner of a cell to each of its corners, the last axis fastest."""
        cells = product(*((0, stride) for stride in self.strides))
        return tuple(map(sum, cells))

    def rising(self) -> Grid:
        """The grid in which no value is below the one before along the first axis."""
        values, before = list(self.values), self.strides[0]
        for place in range(before, len(values)):
            values[place] = max(values[place], values[place - before])
        return Grid(self.axes, values)

    def changed(self, change: Callable[..., float]) -> Grid:
        """The grid of `change(value, *point)` for every point."""
        points = product(*(axis.points for axis in self.axes))
        changed = [change(v, *point) for v, point in zip(self.values, points, strict=True)]
        return Grid(self.axes, changed)
