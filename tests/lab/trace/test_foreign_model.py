"""Models that transformers knows and the estimate does not."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError

pytest.importorskip("torch")

from gpu_mem_calculator.lab.trace.foreign_model import find_foreign_model
from gpu_mem_calculator.lab.trace.run import trace
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read

CONFIG = {
    "model_type": "stablelm",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "pad_token_id": 0,
    "qk_layernorm": True,
}


def allocated(**training: Any) -> int:
    """The traced peak of the model under some training options."""
    data = {"model": {"config": CONFIG}, "training": {"seq_len": 256, "batch_size": 8, **training}}
    model = find_foreign_model(data["model"], trust=False)
    assert model is not None
    run_file = model.run_file(data)
    model.run = resolve(read(run_file).file).run
    return trace(run_file, steps=1, build=model).allocated_bytes


@pytest.mark.proof
def test_recompute_and_attention_are_the_runs() -> None:
    """Half the layers keep less than none recomputed and more than all; eager keeps the maps."""
    none, half, full = (allocated(activation_checkpointing=level) for level in (0, 2, 4))
    assert full < half < none < allocated(attention="eager")


def test_a_policy_that_transformers_lacks_is_refused() -> None:
    """Instead of being left out without a word."""
    with pytest.raises(InputError, match="has no switch in transformers"):
        allocated(activation_checkpointing="selective")
