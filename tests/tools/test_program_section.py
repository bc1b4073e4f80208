"""Run files with a program: what they say themselves stands in place of what the program means."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError

ARGS = {"precision": "32-true", "batch_size": 4, "gradient_checkpointing": True}
RUN: dict[str, Any] = {
    "model": {"name": "qwen3-1.7b", "num_layers": 1},
    "program": {"tool": "lightning", "args": ARGS, "data": {"seq_len": 512}},
    "hardware": {"gpu": "h100"},
}


@pytest.mark.parametrize("level", ["op", "none", "selective"])
def test_the_run_of_a_changed_program_gives_the_result_again(level: str) -> None:
    """Its recompute is that of the change, whichever of the two keys the change uses."""
    key = "recompute" if level == "op" else "activation_checkpointing"
    asked = {**RUN, "training": {key: level}}
    result = full_estimate(asked, replay=False).result
    again = full_estimate(result.run, replay=False).result
    assert again.allocated_bytes == result.allocated_bytes
    assert key in again.run["training"]


@pytest.mark.parametrize("method", ["IA3Config", "LOKR", "VeraConfig"])
def test_a_method_of_peft_that_is_not_modelled_is_refused(method: str) -> None:
    """Its adapters are not LoRA's."""
    trainer = {
        "tool": "transformers.Trainer",
        "data": {"seq_len": 512},
        "peft": {"peft_type": method},
    }
    with pytest.raises(
        InputError, match=f"peft_type='{method}': of PEFT's methods LoRA is modelled"
    ):
        full_estimate({**RUN, "program": trainer}, replay=False)
