"""Megatron-LM: options and models that it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.models.arch.adapters import Adapter
from gpu_mem_calculator.models.families.plain import read_plain
from gpu_mem_calculator.training.engines.megatron_lm.engine import ENGINE

from .test_megatron import EXPERTS, LLAMA, run

REFUSED = [
    ({"tp": 3}, "tensor_parallel_size=3 does not divide 32 heads; try 2 or 4"),
    (
        {"tp": 16, "options": {"transformer_implementation": "local"}},
        "16 does not divide 8 key-value heads, as the local spec wants; try 8",
    ),
    ({"pp": 5}, "pipeline_parallel_size=5 does not divide 32 layers; try 4 or 8"),
    ({"pp": 4, "virtual_stages": 3, "micro_batches": 8}, "3 does not divide 8 layers a stage"),
    ({"pp": 4, "virtual_stages": 2, "micro_batches": 6}, "is not a multiple of"),
    ({"cp": 2, "options": {"transformer_implementation": "local"}}, "Transformer Engine's"),
    ({"cp": 3}, "seq_len=4096 is not a multiple of 2 ×"),
    ({"tp": 8, "seq": 4100, "sequence_parallel": True}, "seq_len=4100 is not a multiple of 8"),
    ({"sequence_parallel": True}, "tensor_parallel_size above 1"),
    ({"ep": 2, "dp": 2}, "the model has no experts; set it to 1"),
    ({"precision": "bf16_pure"}, "use 'bf16_mixed'"),
    ({"autocast": True}, "autocast=true"),
    ({"quantization": "nf4"}, "quantization='nf4'"),
    ({"adapter": Adapter(8, frozenset({"q_proj"}))}, "training.lora"),
    ({"options": {"transformer_implementation": "apex"}}, "try 'transformer_engine'"),
    ({"options": {"make_vocab_size_divisible_by": 0}}, "must be at least 1; try 128"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_refusal(settings: dict[str, Any], sentence: str) -> None:
    """What Megatron refuses is one sentence with the value, the rule and the fix."""
    problems = list(ENGINE.problems(run(**settings)))
    assert len(problems) == 1
    assert sentence in problems[0]


MODELS = [
    (LLAMA | {"intermediate_size": 11001}, {"tp": 2}, "does not divide 11001 MLP columns"),
    (LLAMA | {"position_embedding": "alibi"}, {}, "ALiBi"),
    (
        LLAMA | {"num_attention_heads": 48, "num_key_value_heads": 6, "hidden_size": 6144},
        {"tp": 4},
        "neither divides 6 key-value heads nor",
    ),
    (EXPERTS, {"ep": 3, "dp": 3}, "expert_parallel_size=3 does not divide 8 experts; try 2 or 4"),
    (EXPERTS, {"ep": 4, "dp": 2}, "does not divide the 2 ranks"),
    (EXPERTS, {"tp": 2}, "with experts needs sequence parallelism"),
]


@pytest.mark.parametrize(("numbers", "how", "said"), MODELS)
def test_model_refusal(numbers: dict[str, Any], how: dict[str, Any], said: str) -> None:
    """A model that the cuts do not fit is refused, too."""
    problems = list(ENGINE.problems(run(read_plain(numbers), **how)))
    assert len(problems) == 1
    assert said in problems[0]
