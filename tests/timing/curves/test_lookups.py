"""Lookups of measured speed: arrays equal single sizes bit for bit, and numbers are plausible."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.resolve.hardware import find_hardware
from gpu_mem_calculator.timing.curves.attention import attention_seconds
from gpu_mem_calculator.timing.curves.collectives import KINDS, collective_seconds
from gpu_mem_calculator.timing.curves.grid import Axis, Grid
from gpu_mem_calculator.timing.curves.machine import Machine
from gpu_mem_calculator.timing.curves.matmul import matmul_seconds

MB = 1 << 20
SIZES = (1, 17, 100, 512, 1000, 4096, 5120, 28672, 131072)


def machine(gpu: str, count: int = 16, **keys: object) -> Machine:
    """The machine of some GPUs."""
    return machine_of(find_hardware(GPUConfig(gpu=gpu, num_gpus=count, **keys), None))


@pytest.fixture(scope="module")
def h200() -> Machine:
    """Two nodes of H200."""
    return machine("h200")


def test_a_grid_interpolates_along_each_axis() -> None:
    """A product of two lines is met exactly; beyond the last point by choice."""
    axes = [Axis([1, 2, 4], continues=True), Axis([10, 30], continues=False)]
    grid = Grid(axes, [a * b for a, b in product([1, 2, 4], [10, 30])])
    assert grid.at(3, 20) == 60
    assert grid.at(8, 20) == 160
    assert grid.at(0, 5) == 10
    assert grid.at(2, 100) == 60
    with pytest.raises(ValueError, match="6 points has 5 values"):
        Grid(axes, [1.0] * 5)


def test_matmul_of_arrays_equals_single_products(h200: Machine) -> None:
    """Open shapes broadcast."""
    sizes = np.array(SIZES)
    for dtype in ("bf16", "fp8", "fp32"):
        whole = matmul_seconds(h200, *np.ix_(sizes, sizes, sizes), dtype=dtype, count=3)
        for (a, m), (b, n), (c, k) in product(enumerate(SIZES), repeat=3):
            assert whole[a, b, c] == matmul_seconds(h200, m, n, k, dtype, 3)


def test_attention_of_arrays_equals_single_calls(h200: Machine) -> None:
    """Over batch, attention heads and queries."""
    batches, heads, queries = (1, 3, 8), (1, 4, 32, 96), (100, 512, 6000, 8192)
    keys = {"head_dim": 96, "keys": 8192, "causal": True, "backward": True}
    b, h, q = np.ix_(np.array(batches), np.array(heads), np.array(queries))
    whole = attention_seconds(h200, batch=b, heads=h, queries=q, **keys)
    for (x, b), (y, h), (z, q) in product(*map(enumerate, (batches, heads, queries))):
        assert whole[x, y, z] == attention_seconds(h200, batch=b, heads=h, queries=q, **keys)


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_of_arrays_equal_single_calls(h200: Machine, kind: str) -> None:
    """Over bytes, ranks and strides, within and between nodes."""
    sizes, ranks, strides = (100, 3 * MB, 1 << 31), (1, 2, 3, 8, 64, 1000), (1, 2, 8, 64)
    s, r, d = np.ix_(np.array(sizes), np.array(ranks), np.array(strides))
    whole = collective_seconds(h200, kind, s, r, d)
    for (x, s), (y, r), (z, d) in product(*map(enumerate, (sizes, ranks, strides))):
        value = collective_seconds(h200, kind, s, r, d)
        assert type(value) is float
        shape = np.broadcast_to(whole, (len(sizes), len(ranks), len(strides)))
        assert shape[x, y, z] == value


def test_one_size_needs_no_numpy() -> None:
    """numpy is an extra."""
    code = (
        "import sys; from tests.timing.curves.test_lookups import *; "
        "del sys.modules['numpy']; sys.modules['numpy'] = None; m = machine('h200'); "
        "matmul_seconds(m, 512, 100, 7); collective_seconds(m, 'all_reduce', 1, 16, 2); "
        "collective_seconds(m, 'send', 1, 2, 8); "
        "attention_seconds(m, batch=1, heads=2, head_dim=64, "
        "queries=9, keys=9, causal=True)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
