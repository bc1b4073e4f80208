"""Traces of runs with Liger's kernels and other losses against their estimates."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.lab.trace.run import trace
from tests.corpus import sampled

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 16_000,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
}
DEEPSPEED, FSDP = {"type": "deepspeed", "zero_stage": 2}, {"type": "fsdp"}
LORA = {"liger": True, "lora": {"r": 8}, "precision": "bf16_pure"}
LIGER = {"liger": True}
# family, training, engine
REWARD = {"loss": "reward", "batch_size": 4}
PAIRS = {"loss": "chunked", "reference_model": True, "labelled_tokens": 256}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "liger gemma3": ("gemma3_text", LIGER, {}),
    "liger phi3": ("phi3", {**LIGER, "precision": "bf16_pure"}, {}),
    "liger fp32": ("llama", {"loss": "liger_fused", "precision": "fp32"}, {}),
    "liger deepspeed": ("qwen3", LIGER, DEEPSPEED),
    "cut fsdp": ("qwen2", {"loss": "cut"}, FSDP),
    "no upcast": ("qwen2", {"loss": "full_no_upcast", "precision": "fp16_mixed"}, {}),
    "flash": ("llama", {"loss": "flash_fused"}, {}),
    "flash, no upcast": ("llama", {"loss": "flash_fused_no_upcast"}, {}),
    "chunked": ("llama", {"loss": "chunked", "loss_chunk_size": 4096}, {}),
    "labels": ("qwen2", {"loss": "chunked", "labelled_tokens": 100}, {}),
    "flash in place": ("llama", {"loss": "flash_fused_inplace"}, {}),
    "reward": ("llama", {**REWARD, "activation_checkpointing": "full"}, {}),
    "reference copy": ("gemma2", {**PAIRS, "activation_checkpointing": "full"}, {}),
    "reference base": ("llama", {**PAIRS, "lora": {"r": 8}, "precision": "bf16_pure"}, {}),
    "liger logits": ("olmo2", {"liger": ["cross_entropy", "rope", "rms_norm"]}, {}),
    "smoothed": ("llama", {"label_smoothing": 0.1, "precision": "bf16_pure"}, {}),
    "liger glm4": ("glm4", LIGER, {}),
    "liger gemma2": ("gemma2", {**LIGER, "precision": "bf16_pure"}, {}),
    "liger accumulated": ("smollm3", {**LIGER, "gradient_accumulation_steps": 2}, {}),
    "liger lora": ("llama", {**LORA, "activation_checkpointing": "full"}, {}),
}


@pytest.mark.parametrize(("family", "training", "engine"), sampled(RUNS, 3))
def test_a_trace_agrees(family: str, training: dict[str, Any], engine: dict[str, Any]) -> None:
    """Within blocks of the allocator that are not split."""
    run = {
        "model": {"config": {**SIZES, "model_type": family}},
        "training": {"batch_size": 3, "seq_len": 511, "optimizer": "sgd", **training},
        "hardware": {"gpu": "h200", "num_gpus": 8 if engine else 1},
        "engine": engine,
    }
    found, said = trace(run, steps=2), estimate(run)
    assert said.allocated_bytes == pytest.approx(found.allocated_bytes, rel=0.006)
