"""vLLM's pool of blocks, against its logs and its source."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.serving.vllm.cache import BlockPool, block_pool, notes, pool_layout
from gpu_mem_calculator.serving.vllm.cache_groups import (
    UnsupportedCacheError,
    group_size,
    unify_pages,
)
from gpu_mem_calculator.serving.vllm.cache_layers import (
    CacheSlot,
    LayerPage,
    base_block_size,
    cache_dtype,
)
from gpu_mem_calculator.serving.vllm.checks import cache_problems
from tests.serving.vllm_runs import GIB, logs, pool_of, run_and_shard

LOGS = logs()


def logged(row: dict[str, Any], gib: float) -> BlockPool:
    """The pool of a log's run from `gib` GiB."""
    options = {
        **row.get("options", {}),
        "engine_version": row["engine_version"],
        "engine_generation": row["engine_generation"],
    }
    if "max_seq_len" in row:
        options["max_seq_len"] = row["max_seq_len"]
    if "layers" in options:
        options["places"] = range(*options.pop("layers"))
    if options.pop("draft", None):
        run, _ = run_and_shard(row["model"])
        options["draft"] = replace(run.arch, layers=run.arch.layers[:1])
    return pool_of(row["model"], gib, **options)


@pytest.mark.parametrize("row", LOGS, ids=lambda row: row["id"])
def test_a_log_shows_what_the_pool_it_shows_holds(row: dict[str, Any]) -> None:
    """Tokens agree exactly, up to the last digit of the GiB that vLLM prints."""
    half = 0.5 * 10 ** -row.get("decimals", 2)
    low, high = (logged(row, row["pool_gib"] + part) for part in (-half, half))
    if row["kv_tokens"] is not None:
        assert low.tokens <= row["kv_tokens"] <= high.tokens
    if "blocks" in row:
        assert low.blocks <= row["blocks"] <= high.blocks
    if "max_concurrency" in row:
        assert round(low.concurrency, 2) <= row["max_concurrency"] <= round(high.concurrency, 2)
    if "needs_gib" in row:
        assert round(low.needs_bytes(row["max_seq_len"]) / GIB, 2) == row["needs_gib"]
    if "longest" in row:
        assert low.longest <= row["longest"] <= high.longest
    assert bool(high.problem) == (row.get("fits") is False)


def test_more_ranks_than_key_value_heads_repeat_them() -> None:
    """Qwen2.5-7B has 4 heads: eight ranks store as much of a token as four."""
    four, eight = (pool_of("qwen2.5-7b", tp=tp).token_bytes for tp in (4, 8))
    assert four == eight == pool_of("qwen2.5-7b").token_bytes // 4


def test_latent_attention_is_not_cut_but_shared_out_by_context() -> None:
    """DeepSeek-V3: 61 layers of 576 elements on each rank, an eighth of the tokens with DCP 8."""
    on_one, on_eight = (pool_of("deepseek-v3", tp=tp).token_bytes for tp in (1, 8))
    assert on_one == on_eight == 61 * 576 * 2
    shared = pool_of("deepseek-v3", tp=8, decode_context_parallel_size=8)
    assert shared.token_bytes == 61 * 576 * 2 // 8
    assert shared.tokens == 8 * pool_of("deepseek-v3", tp=8).tokens


def test_latent_attention_before_it_was_one() -> None:
    """0.6 stored keys and values of all heads padded to 256; 0.7.2 aligned a token to 256 bytes."""
    v0 = {"engine_generation": "v0", "tp": 8}
    old = pool_of("deepseek-v3", engine_version="0.6.6", **v0)
    assert old.token_bytes == 61 * 2 * 16 * 256 * 2
    assert pool_of("deepseek-v3", engine_version="0.7.2", **v0).token_bytes == 61 * 640 * 2
    assert pool_of("deepseek-v3", engine_version="0.8.5", **v0).token_bytes == 61 * 576 * 2


def test_windows_share_the_pool_in_groups() -> None:
    """gpt-oss-20b: 12 full and 12 sliding layers in two groups; one more token takes 12 layers."""
    run, shard = run_and_shard("gpt-oss-20b")
    layout = pool_layout(run, shard)
    assert [len(group.slots) for group in layout.groups] == [12, 12]
    gpt = pool_of("gpt-oss-20b", max_seq_len=131072)
    assert gpt.token_bytes == 12 * 2 * 8 * 64 * 2
    # 8192 blocks of 16 for all tokens, and (127 + 8192) / 16 + 1 for the window
    assert gpt.sequence_bytes(131072) == gpt.block_bytes * (8192 + 520 + 1)


def test_the_group_size_of_uneven_kinds() -> None:
    """Counts within a quarter form groups of equal size since 0.12, within a half since 0.18."""
    assert group_size([12, 13], (0, 11, 0)) == 12
    assert group_size([12, 13], (0, 12, 0)) == 13
    assert group_size([10, 14], (0, 17, 0)) == 10
    assert group_size([10, 14], (0, 18, 0)) == 14
    assert group_size([10, 52], (0, 27, 0)) == 10


def test_versions_before_groups_keep_every_token_of_a_window() -> None:
    """0.9.0 stores every token in all 62 layers of Gemma 3, 0.9.1 does not."""
    old, new = (
        pool_of("gemma3-27b", engine_version=v, max_seq_len=32768) for v in ("0.9.0", "0.9.1")
    )
    assert old.token_bytes == 62 * 2 * 16 * 128 * 2
    assert new.token_bytes == 10 * 2 * 16 * 128 * 2
    assert old.concurrency < new.concurrency


def test_chunked_attention_is_kept_whole_since_the_manager_was_turned_off_for_it() -> None:
    """Llama 4 Scout: 48 layers, 12 of them full; blocks of its chunks are freed in 0.10.0 only."""
    run, shard = run_and_shard("llama4-scout", engine_version="0.11.0", max_seq_len=131072)
    kept_pool = block_pool(run, shard, 40 * GIB)
    freed_pool = pool_of("llama4-scout", 40, engine_version="0.10.0", max_seq_len=131072)
    assert kept_pool.token_bytes == 48 * 2 * 8 * 128 * 2
    assert freed_pool.token_bytes == 12 * 2 * 8 * 128 * 2
    assert any("caches all tokens" in note for note in notes(run, shard))


def test_tokens_are_counted_otherwise_since_0_20_1() -> None:
    """The same blocks count first as those of one group, then as concurrency x max_model_len."""
    before, after = (
        pool_of("gemma3-27b", engine_version=v, max_seq_len=32768) for v in ("0.20.0", "0.20.1")
    )
    assert before.blocks == after.blocks
    assert before.tokens == before.blocks // 7 * 16
    assert after.tokens == int(after.concurrency * 32768)


def test_batches_under_way_hold_windows_longer_since_0_26() -> None:
    """Asynchronous scheduling doubles the tokens of a window that cannot be freed yet."""
    before, after = (
        pool_of("gpt-oss-20b", engine_version=v, max_seq_len=131072) for v in ("0.25.0", "0.26.0")
    )
    blocks = [p.sequence_bytes(131072) // p.block_bytes for p in (before, after)]
    assert blocks == [8192 + 521, 8192 + 1033]


@pytest.mark.parametrize(("name", "size"), [("fp8", 1), ("bf16", 2)])
def test_keys_and_values_in_fewer_bits(name: str, size: int) -> None:
    """fp8 has one scale per tensor, so a token takes half."""
    assert pool_of("llama3.1-8b", kv_cache_dtype=name).token_bytes == 32 * 2 * 8 * 128 * size


def test_int8_has_a_scale_for_each_head_and_token() -> None:
    """A key of 128 bytes and a value have four bytes more each."""
    pool = pool_of("llama3.1-8b", kv_cache_dtype="int8", engine_version="0.21.0")
    assert pool.token_bytes == 32 * 2 * 8 * (128 + 4)


def test_a_checkpoint_may_ask_for_fp8() -> None:
    """ModelOpt's checkpoints name the cache's type, which vLLM reads since 0.14."""
    config = {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}
    dtypes = [
        cache_dtype(run_and_shard("llama3.1-8b", engine_version=v, quantized=config)[0])
        for v in ("0.13.0", "0.14.0")
    ]
    assert dtypes == ["auto", "fp8"]
    packed = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}
    run, _ = run_and_shard("llama3.1-8b", engine_version="0.15.0", quantized=packed)
    assert cache_dtype(run) == "fp8"


def test_sparse_latent_attention_keeps_an_index_beside_its_fp8_layout() -> None:
    """DeepSeek-V3.2 in 0.11.0: 656 bytes per token and layer, and 132 of the indexer."""
    config = {
        "model_type": "deepseek_v32",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "intermediate_size": 18432,
        "first_k_dense_replace": 3,
        "n_shared_experts": 1,
        "vocab_size": 129280,
    }
    assert pool_of(config, 40, tp=8).token_bytes == 61 * (656 + 132)
    assert pool_of(config, 40, tp=8, engine_version="0.12.0").token_bytes == 61 * (576 * 2 + 132)
    assert pool_of(config, 40, tp=8, block_size=16).block_size == 64


@pytest.mark.parametrize(
    ("card", "version", "block"),
    [
        ("9.0", "0.11.0", 64),
        ("10.0", "0.11.0", 128),
        ("10.0", "0.16.0", 64),
        ("8.0", "0.11.0", 16),
        ("9.0", "0.21.0", 16),
        ("10.0", "0.21.0", 32),
    ],
)
def test_the_kernel_of_latent_attention_sets_the_block(card: str, version: str, block: int) -> None:
    """FlashMLA, CutlassMLA, FlashInfer and Triton each have a block size."""
    assert (
        base_block_size(run_and_shard("deepseek-v3", card=card, engine_version=version)[0]) == block
    )


def test_a_pipeline_is_as_wide_as_its_narrowest_stage() -> None:
    """Stages of 16 and 32 layers have as many blocks as the one with less memory."""
    stages = (range(16), range(16, 48))
    pools = []
    for places, gib in zip(stages, (3.18, 20.0), strict=True):
        run, shard = run_and_shard("qwen3-coder-30b-a3b", pp=2, places=places)
        pools.append((run, shard, block_pool(run, shard, int(gib * GIB)), gib))
    fewest = min(one.blocks for _, _, one, _ in pools)
    again = [block_pool(run, shard, int(gib * GIB), fewest) for run, shard, _, gib in pools]
    assert [one.tokens for one in again] == [fewest * 16] * 2
    assert again[1].block_bytes == 2 * again[0].block_bytes


def test_the_check_of_a_pipeline_was_of_the_whole_model_for_a_while() -> None:
    """From 0.14 until 0.17 a stage of 16 layers needed memory for all 48."""
    required = [
        pool_of("qwen3-coder-30b-a3b", pp=2, places=range(16), engine_version=version).needs_bytes
        for version in ("0.13.0", "0.15.0", "0.17.0")
    ]
    assert [needs(262144) / GIB for needs in required] == [8.0, 24.0, 8.0]


def test_a_sequence_that_does_not_fit_is_a_problem_with_its_remedy() -> None:
    """Qwen3-32B with 4.45 GiB: 16,000 tokens start, 32,000 do not."""
    assert not pool_of("qwen3-32b", 4.45, max_seq_len=16000).problem
    short = pool_of("qwen3-32b", 4.45, max_seq_len=32000)
    assert "7.8 GiB" in short.problem
    assert f"--max-model-len {short.longest}" in short.problem
    assert short.longest == int(4.45 * GIB) // (16 * 2**18) * 16
    assert "no memory is left" in pool_of("qwen3-32b", -1.4).problem


def test_one_block_is_kept_back_since_0_28() -> None:
    """A pool of exactly one sequence starts in 0.27, not in 0.28."""
    gib = 8192 * 32 * 4096 / GIB
    assert not pool_of("llama3.1-8b", gib, engine_version="0.27.0").problem
    assert pool_of("llama3.1-8b", gib, engine_version="0.28.0").problem


def test_pages_that_cannot_be_made_equal_are_refused() -> None:
    """Gemma 4's layers have pages of two sizes, which share a pool since 0.12."""
    gemma4 = next(row["model"] for row in LOGS if row["id"] == "gemma4-31b-async")
    assert "cannot share a pool" in pool_of(gemma4, engine_version="0.11.0").problem
    assert pool_of(gemma4, engine_version="0.12.0", max_seq_len=16384).blocks


def test_pages_that_do_not_divide_are_padded_since_0_24() -> None:
    """Pages of 32 and 48 bytes: both take 48, but a latent page is never padded."""
    small, large = (LayerPage(kind="full", block=16, token_bytes=size) for size in (2, 3))
    slots = (CacheSlot(0, small), CacheSlot(1, large))
    with pytest.raises(UnsupportedCacheError, match="32 and 48 bytes"):
        unify_pages(slots, (0, 23, 0))
    pages = [slot.page for slot in unify_pages(slots, (0, 24, 0))]
    assert [(page.block, page.bytes) for page in pages] == [(16, 48), (16, 48)]
    with pytest.raises(UnsupportedCacheError):
        unify_pages((CacheSlot(0, replace(small, kind="latent")), slots[1]), (0, 24, 0))


def test_what_is_allocated_is_whole_blocks() -> None:
    """The items sum to whole blocks, and never exceed the pool."""
    pool = pool_of("llama3.1-8b", 3.3)
    total = sum(size for _, size in pool.items)
    assert total == pool.blocks * pool.block_bytes
    assert 0 <= int(3.3 * GIB) - total < pool.block_bytes


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("llama3.1-8b", {"kv_cache_dtype": "int8"}, "is not in vLLM 0.11.0; use 'fp8'"),
        ("deepseek-v3", {"kv_cache_dtype": "int8", "engine_version": "0.21.0"}, "latent attention"),
        ("deepseek-v3", {"decode_context_parallel_size": 3, "tp": 8}, "must divide"),
        ("gpt-oss-20b", {"decode_context_parallel_size": 2, "tp": 8}, "with a window"),
        ("llama3.1-8b", {"decode_context_parallel_size": 2, "tp": 8}, "use at most 1"),
    ],
)
def test_caches_that_vllm_does_not_have(model: str, options: dict[str, Any], says: str) -> None:
    """Each refusal is one sentence."""
    assert says in next(cache_problems(run_and_shard(model, **options)[0]))


def test_context_may_be_shared_out_where_heads_are_repeated() -> None:
    """Llama-3.1-8B's 8 heads are replicated twice on 16 ranks, so two ranks share a sequence."""
    options = {"tp": 16, "decode_context_parallel_size": 2}
    assert not list(cache_problems(run_and_shard("llama3.1-8b", **options)[0]))
    assert pool_of("llama3.1-8b", **options).token_bytes == 32 * 2 * 128 * 2 // 2
