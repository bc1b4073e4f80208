"""The curve of matrix products: a grid of seconds, and waves of tiles where they are visible."""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import ceil_div
from .grid import Grid, Size, Value


def waves(tile: tuple[int, int] | None, multiprocessors: int, m: Size, n: Size) -> Value:
    """Part of the result's tiles that the multiprocessors compute, over the part that is needed.

    Each multiprocessor computes one tile at a time, so the last wave of tiles takes as long as a
    whole one.
    """
    if tile is None:
        return 1.0
    tiles = ceil_div(m, tile[0]) * ceil_div(n, tile[1])
    computed = ceil_div(tiles, multiprocessors) * (multiprocessors * tile[0] * tile[1])
    return computed / (m * n)


class MatmulCurve(Struct, frozen=True, kw_only=True, eq=False):
    """Seconds over rows, columns and the summed dimension.

    - tile: rows and columns of a tile, where waves of tiles are visible (A100); the grid has the
      seconds over `waves`
    """

    grid: Grid
    tile: tuple[int, int] | None
    multiprocessors: int

    def at(self, m: Size, n: Size, k: Size) -> Value:
        """Seconds of one product."""
        seconds = self.grid.at(m, n, k)
        if self.tile is None:
            return seconds
        return seconds * waves(self.tile, self.multiprocessors, m, n)
