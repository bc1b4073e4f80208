"""The grid of matrix products: microseconds over rows, columns and the summed dimension."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from gpu_mem_calculator import catalog
from gpu_mem_calculator.timing.curves.grid import Axis, Grid
from gpu_mem_calculator.timing.curves.machine import MatmulCurve, waves

from .spread import digits, spread
from .wheel import CARDS, heading, table

# Points of the grid; the wheel has 74 x 22 x 22.
ROWS = (1, 16, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768)
WIDTHS = (32, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536)
AXES = (ROWS, WIDTHS, WIDTHS)
DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
TRAINING = (512, 128, 128)  # the least sizes of training, for which the error is stated, too
BLOCK = 256  # training has whole blocks of tokens
FEWEST = 10_000  # rows of a dtype; RTX PRO 6000 has 518 of fp8_block

Point = tuple[int, int, int]
Rows = dict[Point, list[float]]  # one value of each collection


def matmul_file(wheel: Path, card: str) -> dict[str, Any]:
    """The curves of a card, one for each dtype: the median of the collections."""
    source = CARDS[card]
    unit = "microseconds of one product of an m x k with a k x n matrix"
    parts = (catalog.named("gpus", card) or {}).get("multiprocessors", 0)
    return {
        **heading(card, ", ".join(_paths(card))),
        "unit": f"{unit}, over waves of tiles" if source.tile else unit,
        "tile": source.tile,
        "axes": {"m": ROWS, "n": WIDTHS, "k": WIDTHS},
        "curves": {
            dtype: _curve(measured, source.tile, parts)
            for dtype, measured in matmul_rows(wheel, card).items()
            if len(measured) >= FEWEST
        },
    }


def matmul_rows(wheel: Path, card: str) -> dict[str, Rows]:
    """Microseconds by dtype and point, a value of each collection."""
    rows: dict[str, Rows] = {}
    for path in _paths(card):
        for dtype, point, microseconds in _rows(table(wheel, path)):
            rows.setdefault(dtype, {}).setdefault(point, []).append(microseconds)
    return rows


def _paths(card: str) -> list[str]:
    source = CARDS[card]
    return [f"{source.folder}/gemm/{one}/gemm_perf.parquet" for one in source.matmul]


def _rows(columns: dict[str, list[Any]]) -> Iterator[tuple[str, Point, float]]:
    names = ("gemm_dtype", "m", "n", "k", "latency")
    for dtype, m, n, k, milliseconds in zip(*(columns[c] for c in names), strict=True):
        if dtype in DTYPES:
            yield DTYPES[dtype], (m, n, k), milliseconds * 1000


def _curve(rows: Rows, tile: tuple[int, int] | None, parts: int) -> dict[str, Any]:
    measured = {point: median(values) for point, values in rows.items()}
    smooth = {point: us / waves(tile, parts, *point[:2]) for point, us in measured.items()}
    values = [digits(value) for value in _filled(smooth)]
    grid = Grid([Axis(axis, continues=True) for axis in AXES], values)
    curve = MatmulCurve(grid=grid, tile=tile, multiprocessors=parts)
    errors = {point: (curve.at(*point), us) for point, us in measured.items()}
    training = {point: pair for point, pair in errors.items() if is_of_training(point)}
    off = [pair for point, pair in training.items() if not _on_grid(point)]
    several = [(one, measured[p]) for p in training for one in rows[p] if len(rows[p]) > 1]
    return {
        "spread": {
            "all": spread(errors.values()),
            "training": spread(training.values()),
            "training_between_points": spread(off),
            **({"collections": spread(several)} if several else {}),
        },
        "values": values,
    }


def is_of_training(point: Point) -> bool:
    """Whether a product has a size of training."""
    large = all(size >= least for size, least in zip(point, TRAINING, strict=True))
    return large and point[0] % BLOCK == 0


def _on_grid(point: Point) -> bool:
    return all(size in axis for size, axis in zip(point, AXES, strict=True))


def _filled(measured: dict[Point, float]) -> list[float]:
    """The value at each point; where it is missing, by FLOPs from the next smaller point, or that
    of the next larger one.
    """
    known = {point: measured[point] for point in product(*AXES) if point in measured}
    for point in product(*AXES):
        if point not in known:
            known[point] = next(_from_neighbours(known, point))
    return [known[point] for point in product(*AXES)]


def _from_neighbours(known: dict[Point, float], point: Point) -> Iterator[float]:
    """From points with fewer columns or a shorter sum first: also bytes grow with these."""
    for step in (-1, 1):
        for place in (1, 2, 0):
            at = AXES[place].index(point[place]) + step
            near = (*point[:place], *AXES[place][max(at, 0) : at + 1], *point[place + 1 :])
            if near in known:
                yield known[near] * (point[place] / near[place] if step < 0 else 1)
