"""What a model caches of a sequence, to the byte, for every kind of mixer."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.run.weights.shards import ServerShard
from gpu_mem_calculator.training.generation.kv_cache import (
    CROSS,
    FULL,
    LATENT,
    STATE,
    WINDOW,
    LayerState,
    cached_states,
    sequence_bytes,
    token_bytes,
    unscaled_row,
)
from tests.serving.vllm_runs import arch, logs

MODELS = {row["id"]: row["model"] for row in logs()}


def caches(
    model: str | dict[str, Any], tp: int = 1, bits: int = 16, state_bits: int = 16
) -> tuple[LayerState, ...]:
    """The cache of a rank that has all layers."""
    model_arch = arch(model)
    shard = ServerShard(places=range(len(model_arch.layers)), tp=tp, attention_tp=tp)
    return cached_states(model_arch, shard, unscaled_row(bits), state_bits=state_bits, conv_bits=16)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("llama2-7b", 524288),  # 32 layers x 32 heads x 128, twice, 2 bytes: multi-head
        ("llama3.1-8b", 131072),  # 8 heads: grouped
        ("falcon-7b", 8192),  # 1 head of 64: multi-query
        ("qwen3-32b", 262144),
        ("deepseek-v3", 70272),  # 61 x (512 + 64) x 2: latent
        ("kimi-k2", 70272),
    ],
)
def test_a_token(model: str, size: int) -> None:
    """In bf16, all layers, as published or logged."""
    assert token_bytes(caches(model)) == size


def test_ranks_shard_heads_down_to_one_and_replicate_latents() -> None:
    """Llama-3.1-8B's 8 heads over 4, 8 and 16 ranks; DeepSeek's latent over 8."""
    assert [token_bytes(caches("llama3.1-8b", tp)) for tp in (4, 8, 16)] == [32768, 16384, 16384]
    assert token_bytes(caches("deepseek-v3", 8)) == 70272


def test_windows_stop_growing() -> None:
    """Gemma 3 27B: 10 of 62 layers grow after 1,024 tokens."""
    layers = caches("gemma3-27b")
    each = 2 * 16 * 128 * 2
    assert {one.kind: len(one.places) for one in layers} == {WINDOW: 52, FULL: 10}
    assert sequence_bytes(layers, 1024) == 62 * 1024 * each
    assert sequence_bytes(layers, 1025) - sequence_bytes(layers, 1024) == 10 * each
    assert token_bytes(layers) == 10 * each


def test_layers_of_llama_4_cache_one_chunk_at_a_time() -> None:
    """36 of Scout's 48 layers attend to their chunk of 8,192 tokens only."""
    layers = caches("llama4-scout")
    each = 2 * 8 * 128 * 2
    assert sequence_bytes(layers, 131072) == (36 * 8192 + 12 * 131072) * each


def test_mamba_keeps_a_state_and_its_convolutions_inputs() -> None:
    """Jamba: 28 of 32 layers with 8192 x 16 and 8192 x 3, 4 with keys and values."""
    layers = caches("jamba-v0.1")
    states = next(one for one in layers if one.kind == STATE)
    assert len(states.places) == 28
    assert states.state_bytes == (8192 * 16 + 8192 * 3) * 2
    assert token_bytes(layers) == 4 * 2 * 8 * 128 * 2
    assert sequence_bytes(layers, 1) - token_bytes(layers) == 28 * states.state_bytes


def test_mamba_2_convolves_its_groups_too() -> None:
    """Mamba-2 2.7B: 80 heads of 64 x 128, a convolution over 5120 + 2 x 128 channels."""
    (state,) = caches("mamba2-2.7b", state_bits=32)
    assert state.state_bytes == 80 * 64 * 128 * 4 + (5120 + 256) * 3 * 2


def test_gated_delta_nets_keep_a_matrix_for_each_head() -> None:
    """Qwen3-Next: 32 heads of 128 x 128 in 36 layers; the convolution runs over q, k and v."""
    layers = caches(MODELS["qwen3-next-tp2"], tp=2)
    states = next(one for one in layers if one.kind == STATE)
    assert len(states.places) == 36
    assert states.state_bytes == (32 * 128 * 128 + 8192 * 3) * 2 // 2


def test_cross_attention_caches_the_encoder_in_any_context() -> None:
    """T5-large: 24 decoder layers; the encoder's layers cache nothing."""
    by_kind = {one.kind: one for one in caches("t5-large")}
    assert {kind: len(one.places) for kind, one in by_kind.items()} == {FULL: 24, CROSS: 24}
    assert by_kind[CROSS].sequence_bytes(1) == by_kind[CROSS].sequence_bytes(4096)
    assert by_kind[FULL].token_bytes == 2 * 16 * 64 * 2


def test_a_latent_is_one_vector() -> None:
    """No value in addition, and half the bytes in fp8."""
    (latent,) = caches("deepseek-v3", bits=8)
    assert (latent.kind, latent.token_bytes) == (LATENT, 576)
