"""The grid of matrix products: microseconds over rows, columns and the summed dimension."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from gpu_mem_calculator.timing.curves.grid import Axis, Grid

from .spread import digits, spread
from .wheel import CARDS, heading, table

# Points of the grid; the wheel has 74 x 22 x 22.
ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
WIDTHS = (32, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536)
AXES = (ROWS, WIDTHS, WIDTHS)
DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
TRAINING = (512, 128, 128)  # the least sizes of the error for training
FEWEST = 10_000  # rows of a dtype; RTX PRO 6000 has 518 of fp8_block

Point = tuple[int, int, int]


def matmul_file(wheel: Path, card: str) -> dict[str, Any]:
    """The curves of a card, one for each dtype."""
    source = CARDS[card]
    path = f"{source.folder}/gemm/{source.matmul}/gemm_perf.parquet"
    columns = table(wheel, path)
    rows: dict[str, dict[Point, float]] = {}
    kernels: dict[str, set[str]] = {}
    for dtype, kernel, m, n, k, milliseconds in zip(
        *(columns[c] for c in ("gemm_dtype", "kernel_source", "m", "n", "k", "latency")),
        strict=True,
    ):
        if dtype in DTYPES:
            rows.setdefault(DTYPES[dtype], {})[m, n, k] = milliseconds * 1000
            kernels.setdefault(DTYPES[dtype], set()).add(kernel)
    return {
        **heading(card, path, columns),
        "unit": "microseconds of one product of an m x k with a k x n matrix",
        "axes": {"m": ROWS, "n": WIDTHS, "k": WIDTHS},
        "curves": {
            dtype: _curve(measured, sorted(kernels[dtype]))
            for dtype, measured in rows.items()
            if len(measured) >= FEWEST
        },
    }


def _curve(measured: dict[Point, float], kernels: list[str]) -> dict[str, Any]:
    values = [digits(value) for value in _filled(measured)]
    grid = Grid([Axis(axis, continues=True) for axis in AXES], values)
    all_rows = [(grid.at(*point), seconds) for point, seconds in measured.items()]
    of_training = [
        (grid.at(*point), seconds)
        for point, seconds in measured.items()
        if all(size >= least for size, least in zip(point, TRAINING, strict=True))
    ]
    return {
        "kernels": kernels,
        "spread": {"all": spread(all_rows), "training": spread(of_training)},
        "values": values,
    }


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
    for step in (-1, 1):
        for place, axis in enumerate(AXES):
            at = axis.index(point[place]) + step
            near = (*point[:place], *axis[max(at, 0) : at + 1], *point[place + 1 :])
            if near in known:
                yield known[near] * (point[place] / near[place] if step < 0 else 1)
