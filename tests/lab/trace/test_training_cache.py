"""What a forward pass of training keeps: a KV cache that nothing reads, autocast's casts."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.corpus import sampled

from .conftest import TINY

pytest.importorskip("torch")

WIDE = {**TINY, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8}
CASES = {
    "fp32 keys, and values cast to fp32": ({}, "use_cache", True),
    "keys that attention saves for backward": ({"precision": "bf16_pure"}, "use_cache", True),
    "casts under a checkpoint": ({"activation_checkpointing": "full"}, "autocast_cache", False),
}


def run_file(**training: Any) -> dict[str, Any]:
    """A tiny run without gradient clipping."""
    usual = {"seq_len": 512, "batch_size": 2, "optimizer": "sgd", "gradient_clipping": 0}
    return {
        "model": {"name": "tiny", "config": WIDE},
        "training": {**usual, **training},
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }


@pytest.mark.parametrize("case", sampled(CASES.keys(), keep=2))
def test_the_difference_is_the_traced_one(case: str) -> None:
    """The key changes the first forward's peak by as many bytes as in a trace."""
    from gpu_mem_calculator.lab.trace.run import trace

    training, key, value = CASES[case]
    runs = [run_file(**training), run_file(**training, **{key: value})]
    estimates = [full_estimate(run).replayed for run in runs]
    without, with_key = (e.phases["s0.a0.fwd"].peak_bytes for e in estimates if e)
    plain, changed = (trace(run, steps=1).phases["s0.a0.fwd"].peak_bytes for run in runs)
    assert with_key - without == changed - plain
    assert (changed == plain) == ("saves for backward" in case)


@pytest.mark.parametrize(
    ("training", "problem"),
    [
        ({"use_cache": True, "activation_checkpointing": "full"}, "transformers turns it off"),
        ({"autocast_cache": False, "precision": "fp32"}, "this run has no autocast"),
    ],
)
def test_what_has_no_effect_is_refused(training: dict[str, Any], problem: str) -> None:
    """With a sentence that names the key."""
    with pytest.raises(InputError, match=problem):
        estimate(run_file(**training))
