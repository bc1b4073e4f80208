"""A tiny run, traced once for every test that looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpu_mem_calculator.lab.trace.run import RunTrace

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def tiny_run(**training: Any) -> dict[str, Any]:
    """A run file that traces in a second."""
    return {
        "model": {"name": "tiny", "config": TINY},
        "training": {"seq_len": 128, "batch_size": 2, **training},
    }


@pytest.fixture(scope="session")
def traced() -> RunTrace:
    """The tiny run, three steps."""
    pytest.importorskip("torch")
    from gpu_mem_calculator.lab.trace.run import trace

    return trace(tiny_run())
