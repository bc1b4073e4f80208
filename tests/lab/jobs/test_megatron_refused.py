"""Runs that Megatron-Core's arguments cannot say."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.lab.jobs import job as jobs
from gpu_mem_calculator.lab.jobs.megatron_config import refusals
from gpu_mem_calculator.runfile.text.errors import InputError

from .test_megatron import family, job, resolved


def test_latent_attention_is_refused() -> None:
    """Megatron-Core's own attention has one size for keys and values."""
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_group": 1,
        "topk_group": 1,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    assert any("latent attention" in text for text in family(config))


def test_transformer_engine_is_refused() -> None:
    """It is not installed; the sentence says what to set."""
    run = resolved(engine={"transformer_implementation": "transformer_engine"})
    assert [t for t in refusals(run) if "engine.transformer_implementation='local'" in t]


def test_extensions_that_are_not_there_are_refused() -> None:
    """Fused kernels of Apex are named, each with the option that asks for it."""
    asked = job(engine={"masked_softmax_fusion": True, "gradient_accumulation_fusion": True})
    with pytest.raises(InputError) as error:
        jobs.run(asked)
    assert [text.partition("=")[0] for text in error.value.problems] == [
        "engine.gradient_accumulation_fusion",
        "engine.masked_softmax_fusion",
    ]


def test_norms_are_recomputed_with_transformer_engine_alone() -> None:
    """Megatron-Core's checkpoint without output reads its FP8 state."""
    asked = job(training={"recompute": {"recompute_modules": ["mlp", "layernorm"]}})
    with pytest.raises(InputError) as error:
        jobs.run(asked)
    (sentence,) = error.value.problems
    assert "'layernorm' needs transformer_engine in Megatron-Core" in sentence
    assert sentence.endswith("leave it out")


def test_models_that_gpt_cannot_say_are_refused() -> None:
    """Norms behind the branches and norms over all heads are not GPTModel's."""
    shared = {
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    assert any("norms" in t for t in family({"model_type": "gemma2", "head_dim": 32, **shared}))
    assert not family({"model_type": "llama", **shared})
    assert not family({"model_type": "llama", **shared, "num_hidden_layers": 1})
