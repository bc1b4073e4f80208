"""Configs that give a published model's sizes and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.published_config import complete_config
from gpu_mem_calculator.runfile.resolve.resolve_inference import resolve_inference
from gpu_mem_calculator.tools.read import read

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
GEMMA: dict[str, Any] = {
    "model_type": "gemma3",
    "num_hidden_layers": 62,
    "hidden_size": 5376,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "intermediate_size": 21504,
    "vocab_size": 262208,
    "tie_word_embeddings": True,
}
KIMI: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "intermediate_size": 18432,
    "vocab_size": 163840,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
}


def run(config: dict[str, Any], **inference: Any) -> Run:
    """A server's run."""
    file = {
        "model": {"config": config},
        "inference": {"engine": "vllm", **inference},
        "hardware": {"gpu": "h200"},
    }
    return resolve_inference(read(file).file).run


@pytest.mark.parametrize(("length", "positions"), [(16000, 131072), (131072, 131072)])
def test_positions_are_those_of_the_model_that_can_be_meant(length: int, positions: int) -> None:
    """Llama 3 and 3.1 have the same sizes; a length beyond 8,192 is Llama 3.1's."""
    assert run(LLAMA, max_seq_len=length).arch.max_seq_len == positions


def test_what_two_models_disagree_on_is_not_filled_in() -> None:
    """Without a length it may be either."""
    made, _ = complete_config(ModelConfig(config=LLAMA), None, None)
    assert made.config is not None
    assert "max_position_embeddings" not in made.config
    assert made.config["rms_norm_eps"] == 1e-05


def test_a_vision_tower_is_loaded_too() -> None:
    """Servers load what the checkpoint holds."""
    found = run(GEMMA)
    assert found.arch.tower_parameters > 400_000_000
    assert sum(window is not None for window in found.arch.windows) == 52


def test_a_format_that_is_named_is_the_published_one() -> None:
    """Kimi-K2-Thinking has 4 bits in its experts alone; Kimi-K2 is published in FP8."""
    assert (run(KIMI, quantization="int4").quantized or {})["format"] == "pack-quantized"
    assert (run(KIMI, quantization="fp8").quantized or {})["quant_method"] == "fp8"
    assert run(KIMI, quantization="awq").quantized is None


@pytest.mark.parametrize("key", ["vocab_size", "intermediate_size", "num_hidden_layers"])
def test_other_sizes_are_another_model(key: str) -> None:
    """Nothing is filled in where one of the sizes differs, or one is missing."""
    other, without = {**LLAMA, key: LLAMA[key] + 8}, {k: v for k, v in LLAMA.items() if k != key}
    for config in (other, without):
        assert complete_config(ModelConfig(config=config), 16000, None) == (
            ModelConfig(config=config),
            (),
        )


def test_what_is_filled_in_is_said() -> None:
    """The estimate lists what it assumed."""
    file = {"model": {"config": LLAMA}, "inference": {"engine": "vllm", "max_seq_len": 16000}}
    assumed = resolve_inference(read(file).file).assumed
    assert "model.config leaves out what Llama 3.1 8B has, whose sizes it gives" in assumed
