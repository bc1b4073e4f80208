"""The interval around an estimate."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.step import FACTORS, interval_class, interval_factors
from gpu_mem_calculator.tools.read import read

RUNS: dict[str, dict[str, Any]] = {
    "PyTorch": {},
    "FSDP": {"engine": {"type": "fsdp"}},
    "DeepSpeed": {"engine": {"type": "deepspeed"}},
    "Megatron-LM": {"engine": {"type": "megatron_lm"}},
    "Megatron-DeepSpeed": {"engine": {"type": "megatron_deepspeed"}},
    "adapters": {"training": {"lora": {"r": 8}}},
    "experts": {"model": {"name": "mixtral-8x7b"}, "engine": {"type": "fsdp"}},
}


@pytest.mark.parametrize("name", FACTORS)
def test_every_class_has_a_run_and_its_factors(name: str) -> None:
    """Low is below the estimate, high above it."""
    hardware = {"gpu": "h200", "num_gpus": 8}
    file = {"model": {"name": "llama3.2-1b"}, "hardware": hardware, **RUNS[name]}
    resolved = resolve(read(file).file)
    assert interval_class(resolved.run, resolved.engine.name) == name
    low, high = interval_factors(resolved.run, resolved.engine.name)
    assert 0 < low < 1 < high
