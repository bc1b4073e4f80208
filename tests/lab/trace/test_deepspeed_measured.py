"""DeepSpeed's traces against runs measured on an H200, phase by phase."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus import sampled
from tests.lab.trace.test_measured import error, row

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("deepspeed")

BLOCKS = 8192  # bytes; a seed's and a few scalars' are not traced
RUNS = {
    "kept-07-z1-pythia-160m": "kept",  # fp16, full recompute
    "ds-z0-qwen0.5b-w4-accum2": "options",  # bf16 without ZeRO, two micro-batches
    "ds-z3-llama1b-w8-live0-reuse0": "options",
    "host-z2-opt-gpt2-w1": "host",  # the optimizer on the host
    "host-z3-both-qwen0.5b-w1": "host",  # the weights, too
}


@pytest.mark.parametrize(("name", "file"), sampled(RUNS.items(), keep=1))
def test_a_trace_takes_what_the_gpu_took(name: str, file: str) -> None:
    """What is allocated and reserved up to the end of the first step, to a few blocks."""
    from gpu_mem_calculator.lab.trace.run import trace

    run = row(name, file)
    found = trace(run["config"], steps=1).phases
    assert [*found][:2] == ["model", "init"]
    for phase, mine in found.items():
        bytes_: dict[str, Any] = run["phases"][phase]
        assert abs(mine.start_next_bytes - bytes_["start_next_bytes"]) < BLOCKS, phase
        assert abs(mine.peak_bytes - bytes_["peak_bytes"]) < BLOCKS, phase
        assert error(mine.reserved_bytes, bytes_["reserved_bytes"]) < 0.2, phase


@pytest.mark.proof
def test_the_second_step_of_stage_3_knows_the_order_of_the_first() -> None:
    """What is fetched ahead, and so the peak, is another once the order is known."""
    from gpu_mem_calculator.lab.trace.run import trace

    run = row("host-z3-opt-gpt2-w1", "host")
    found = trace(run["config"], steps=2)
    measured = run["measured"]
    assert error(found.allocated_bytes, measured["allocated_bytes"]) < 0.001
    assert error(found.reserved_bytes, measured["reserved_bytes"]) < 0.5
    assert found.peak_phase.startswith("s1.")
