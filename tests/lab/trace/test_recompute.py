"""Estimates under recompute policies against traces of the program that does it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from tests.corpus import sampled

from .conftest import TINY

pytest.importorskip("torch")

CONFIG = {**TINY, "num_hidden_layers": 3, "hidden_size": 512, "intermediate_size": 1408}
OP = {"mode": "selective", "selective_ac_option": "op"}
POLICIES: tuple[Any, ...] = (
    OP,
    {**OP, "early_stop": True},
    "attention_kept",
    {"every_n_layers": 2},
    {"mode": "full"},
    {"activation_checkpointing_target": ["attention", "mlp"]},
)


@pytest.mark.parametrize("policy", sampled(POLICIES, keep=1), ids=str)
def test_the_estimate_is_the_trace(policy: Any) -> None:
    """Allocated bytes agree to 0.1 %, in a run whose peak is in a layer's backward."""
    from gpu_mem_calculator.lab.trace.run import trace

    run = {
        "model": {"name": "tiny", "config": {**CONFIG, "max_position_embeddings": 2048}},
        "training": {"seq_len": 2048, "batch_size": 4, "optimizer": "sgd", "recompute": policy},
        "engine": {"type": "fsdp"},
        "hardware": {"gpu": "h200", "num_gpus": 8},
    }
    traced = trace(run, steps=2)
    assert traced.peak_phase.endswith("bwd")
    assert estimate(run).allocated_bytes == pytest.approx(traced.allocated_bytes, rel=1e-3)
