"""A compiled model on fake tensors: torch's own partitioner and inductor's own code."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import estimate

pytest.importorskip("torch")
pytest.importorskip("transformers")

SHAPE = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32}
SHAPE |= {"num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 8000}


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:.*is deprecated. Please switch:DeprecationWarning")  # torch's
@pytest.mark.parametrize(
    "training",
    [{}, {"precision": "bf16_pure"}, {"activation_checkpointing": "full"}],
    ids=["autocast", "pure", "checkpointed"],
)
def test_estimate_is_near_the_trace(training: dict[str, Any]) -> None:
    """The estimate's peak is inductor's, but for a few tensors as small as the residual stream."""
    from gpu_mem_calculator.lab.trace.run import trace

    given = {"batch_size": 2, "seq_len": 256, "compile": True, **training}
    file = {
        "model": {"config": {"model_type": "llama", "tie_word_embeddings": True, **SHAPE}},
        "training": {**given, "optimizer_implementation": "fused"},
        "hardware": {"num_gpus": 1, "gpu": "h200"},
    }
    estimated, traced = estimate(file), trace(file)
    assert estimated.startup_bytes == traced.startup_bytes
    assert estimated.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=0.03)
