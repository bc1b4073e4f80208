"""Inference on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.conftest import served

pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpu_mem_calculator import estimate
from gpu_mem_calculator.lab.trace.run import trace
from gpu_mem_calculator.ledger.ledger import CACHE
from gpu_mem_calculator.runfile.text.errors import InputError


@pytest.mark.parametrize(
    ("mode", "phase"),
    [({}, "generate"), ({"new_tokens": 0}, "prefill"), ({"num_beams": 2}, "generate")],
)
def test_a_generation_is_traced(mode: dict[str, Any], phase: str) -> None:
    """Its model is loaded, then it runs; what is allocated is what the estimate says."""
    section = {"batch_size": 2, "prompt_len": 64, "new_tokens": 4, **mode}
    found = trace(served(**section))
    assert list(found.phases) == ["load", phase]
    assert found.peak_phase == phase
    told = estimate(served(**section))
    assert abs(told.allocated_bytes - found.allocated_bytes) <= 0.003 * found.allocated_bytes
    assert told.startup_bytes == pytest.approx(found.startup_bytes, rel=0.001)


def test_a_trace_knows_the_cache() -> None:
    """By the file that makes it: keys and values of three layers."""
    found = trace(served(batch_size=2, prompt_len=64, new_tokens=0))
    cached = [e for e in found.ledger.entries if e.kind == CACHE]
    assert sum(int(e.at("prefill")) for e in cached) == 3 * 2 * 2 * 64 * 2 * 32 * 2


def test_kernels_without_fake_tensors_are_refused() -> None:
    """bitsandbytes' among them."""
    with pytest.raises(InputError, match=r"inference\.quantization='nf4' is not traced"):
        trace(served(quantization="nf4"))
