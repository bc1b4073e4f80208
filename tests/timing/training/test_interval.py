"""The interval around an estimate."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.core.resolve import resolve
from gpu_mem_calculator.core.runfile import read
from gpu_mem_calculator.timing.training.interval import FACTORS, interval_class, interval_factors

RUNS = {
    "one GPU": ("llama3.2-1b", {"gpu": "h200", "num_gpus": 1}),
    "one node": ("llama3.2-1b", {"gpu": "h200", "num_gpus": 8}),
    "several nodes": ("llama3.2-1b", {"gpu": "h200", "num_gpus": 16}),
    "experts": ("mixtral-8x7b", {"gpu": "h200", "num_gpus": 16}),
}


@pytest.mark.parametrize("name", FACTORS)
def test_every_class_has_a_run_and_its_factors(name: str) -> None:
    """Low is below the estimate, high above it."""
    model, hardware = RUNS[name]
    run = resolve(read({"model": {"name": model}, "hardware": hardware})).run
    assert interval_class(run) == name
    low, high = interval_factors(run)
    assert 0 < low < 1 < high
