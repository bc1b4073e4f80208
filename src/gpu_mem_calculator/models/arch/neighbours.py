"""Consecutive parameters, which a loop over them has in memory at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

# Elements of the parameter before, of this one, and its rows and columns (0 for a vector).
Neighbours = tuple[int, int, int, int]


def neighbours(
    shapes: Iterable[tuple[int, ...]], elements: Iterable[int] | None = None
) -> frozenset[Neighbours]:
    """The neighbours of each parameter, in the order of their shapes; `elements`: of each, where
    they are scaled.
    """
    shapes = tuple(shapes)
    pairs = set()
    before = 0
    for shape, size in zip(
        shapes, map(prod, shapes) if elements is None else elements, strict=True
    ):
        rows, columns = shape[-2:] if len(shape) > 1 else (0, 0)
        pairs.add((before, size, rows, columns))
        before = size
    return frozenset(pairs)
