"""Recurrent states in vLLM's pool: Mamba, gated delta nets, and attention layers next to them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gpu_mem_calculator.serving.vllm.activations import checkpoint_parts
from gpu_mem_calculator.serving.vllm.cache import block_pool, pool_layout, states_outside_pool
from gpu_mem_calculator.training.generation.kv_cache import STATE
from tests.serving.vllm_runs import GIB, logs, pool_of, run_and_shard

MODELS = {row["id"]: row["model"] for row in logs()}
QWEN3_NEXT, NEMOTRON = MODELS["qwen3-next-tp2"], MODELS["nemotron-3-nano-30b-fp8kv"]


def test_attention_blocks_grow_to_the_page_of_a_state() -> None:
    """Granite 4.0 H Small in 0.11.1: 528 tokens, and states padded by 0.69 %."""
    config = {
        "model_type": "granitemoehybrid",
        "hidden_size": 4096,
        "num_hidden_layers": 40,
        "layer_types": (["mamba"] * 9 + ["attention"]) * 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "num_local_experts": 72,
        "num_experts_per_tok": 10,
        "intermediate_size": 768,
        "shared_intermediate_size": 1536,
        "vocab_size": 100352,
    }
    run, shard = run_and_shard(config, engine_version="0.11.1")
    layout = pool_layout(run, shard)
    state = next(slot.page for slot in layout.rank_slots if slot.page.kind == STATE)
    assert layout.block_size == 528
    assert round(100 * (state.bytes / state.state_bytes - 1), 2) == 0.69


def test_a_state_per_guessed_token_and_with_prefix_caching_one_more() -> None:
    """Qwen3-Next, 36 layers in 3 groups: 1 state, 2 with prefix caching, 1 more per draft token."""

    def states(**options: Any) -> int:
        run, shard = run_and_shard(QWEN3_NEXT, engine_version="0.21.0", max_seq_len=4096, **options)
        pool = block_pool(run, shard, 20 * GIB)
        grows = -(-4096 // pool.block_size)
        return (pool.sequence_bytes(4096) // pool.block_bytes - grows) // 3

    assert states() == 1
    assert states(enable_prefix_caching=True) == 2
    guess = {"speculative_method": "mtp", "num_speculative_tokens": 2}
    assert states(**guess) == 3


def test_v0_keeps_states_beside_the_pool() -> None:
    """Jamba on V0: 4 attention layers in the pool, and a state for each sequence outside."""
    run, shard = run_and_shard(
        "jamba-v0.1", engine_version="0.7.3", engine_generation="v0", max_num_seqs=8
    )
    assert block_pool(run, shard, 8 * GIB).token_bytes == 4 * 2 * 8 * 128 * 2
    assert states_outside_pool(run, shard) == 8 * 28 * (8192 * 16 + 8192 * 3) * 2


def test_mamba_alone_has_a_block_for_each_sequence() -> None:
    """Without attention blocks are states, one per sequence of any length."""
    pool = pool_of("mamba2-2.7b", 4, max_seq_len=4096)
    assert pool.sequence_bytes(16) == pool.sequence_bytes(4096) == pool.block_bytes
    assert pool.concurrency == pool.blocks
    assert pool.token_bytes == 0


def test_groups_of_states_are_repeated_with_the_heads() -> None:
    """Nemotron's 8 groups on 16 ranks are replicated: each rank has one, as on 8 ranks."""
    run8, shard8 = run_and_shard(NEMOTRON, tp=8)
    run16, shard16 = run_and_shard(NEMOTRON, tp=16)
    conv = [
        next(s.page.state_bytes for s in pool_layout(r, s_).rank_slots if s.page.kind == STATE)
        for r, s_ in ((run8, shard8), (run16, shard16))
    ]
    scanned = 64 * 64 * 128 * 2
    assert conv == [scanned // 8 + (512 + 256) * 3 * 2, scanned // 16 + (256 + 256) * 3 * 2]


def test_blocks_end_where_gated_delta_nets_keep_a_state() -> None:
    """From 0.33 on, at multiples of 64 tokens, where prefixes are cached."""

    def blocks(version: str, caches: bool = True) -> tuple[int, list[int]]:
        chosen = {"engine_version": version, "enable_prefix_caching": caches}
        run, shard = run_and_shard(QWEN3_NEXT, **chosen)
        options = {**run.options, "max_num_batched_tokens": 8192}
        kept = [part.bytes for part in checkpoint_parts(replace(run, options=options), shard)]
        return pool_layout(run, shard).block_size, kept

    before, after = blocks("0.32.0"), blocks("0.33.0")
    assert not before[1]
    assert before[0] < after[0]
    assert after[0] % 64 == 0
    state = 32 * 128 * 128 * 4  # heads, key_dim × value_dim, fp32
    assert set(after[1]) == {-(-8192 // after[0]) * state}
    assert blocks("0.33.0", caches=False)[1] == []
