"""Traces against runs measured on an H200: what a GPU allocated and reserved, phase by phase.

`gpu-mem-calc backtest RUNS.jsonl --rung trace` does it for every run; here are small ones of each
kind. What a budget leaves open is the order of equal free blocks, which a GPU decides by address.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.predict import outside_bytes
from tests.conftest import measured_runs
from tests.corpus import sampled

pytest.importorskip("torch")
pytest.importorskip("transformers")

ALLOCATED, RESERVED = 0.1, 0.5  # percent
RUNS = {
    "fam-falcon-40b": "families",  # one GPU, pure bf16
    "fam-opt-1.3b": "families",  # layer norms, biases, dropout, a padding mask that is full
    "autocast-mixtral-8x7b": "families",  # autocast, grouped experts in fp32
    "random-15-llama3.1-405b": "random",  # full recompute
    "random-20-gpt-neo-2.7b": "random",  # DDP
    "random-13-qwen3-1.7b": "random",  # FSDP2
    "lora-llama3.2-1b-r16-qv": "runs",  # PEFT
    "alloc-3-roundup_power2_divisions": "options",  # other allocator settings
}


def row(name: str, file: str) -> dict[str, Any]:
    """A measured run."""
    return next(one for one in measured_runs(file) if one["id"] == name)


def error(predicted: int, measured: int) -> float:
    """In percent."""
    return abs(100 * (predicted / measured - 1))


@pytest.mark.parametrize(("name", "file"), sampled(RUNS.items(), keep=1))
def test_a_trace_takes_what_the_gpu_took(name: str, file: str) -> None:
    """Allocated and reserved peaks, and the allocated peak of every phase, within the budget."""
    from gpu_mem_calculator.lab.trace.run import trace

    run = row(name, file)
    found, measured = trace(run["config"]), run["measured"]
    assert error(found.allocated_bytes, measured["allocated_bytes"]) < ALLOCATED
    assert error(found.reserved_bytes, measured["reserved_bytes"]) < RESERVED
    assert error(found.startup_bytes, measured["startup_bytes"]) < ALLOCATED
    outside = outside_bytes(found.resolved.outside_torch, run["environment"]["process_group"])
    assert error(found.reserved_bytes + outside, measured["device_bytes"]) < RESERVED
    for phase, bytes_ in run["phases"].items():
        mine = found.phases.get(phase) or found.phases[phase.replace(".", ".a0.", 1)]
        assert error(mine.start_next_bytes, bytes_["start_next_bytes"]) < ALLOCATED, phase
