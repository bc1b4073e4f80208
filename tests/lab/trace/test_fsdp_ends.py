"""FSDP2 with units of embedding and head, and LoRA adapters: the estimate is what torch allocates
on fake tensors.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.lab.trace.run import trace
from tests.corpus import sampled

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 704,
    "vocab_size": 4000,
}
NEAR = 1e-3  # gradients of norms and cuBLAS' workspaces are rounded to blocks


@pytest.mark.parametrize(
    "training",
    sampled([{"activation_checkpointing": "full"}, {}, {"gradient_accumulation_steps": 2}], keep=1),
)
def test_frozen_ends(training: dict[str, Any]) -> None:
    """Embedding and head are gathered, and have no gradient to reduce."""
    lora = {"r": 8, "target_modules": ["q_proj", "down_proj"]}
    run = {
        "model": {"config": CONFIG},
        "training": {"batch_size": 2, "seq_len": 128, "lora": lora, **training},
        "engine": {"type": "fsdp", "wrap_embedding_and_head": True},
        "hardware": {"gpu": "h200", "num_gpus": 4},
    }
    predicted, traced = estimate(run), trace(run)
    assert predicted.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=NEAR)
    assert predicted.reserved_bytes == traced.reserved_bytes
