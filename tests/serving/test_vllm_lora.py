"""vLLM's adapter slots."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.serving.vllm.budget import adapter_slots, has_vocabulary_slots
from gpu_mem_calculator.serving.vllm.checks import adapter_problems
from tests.serving.vllm_runs import run_and_shard


def parts(model: str | dict[str, Any], **options: Any) -> dict[str, int]:
    """Bytes of adapter slots by part of the model."""
    run, shard = run_and_shard(model, **options)
    return {one.name.removeprefix("adapters: "): one.bytes for one in adapter_slots(run, shard)}


def test_a_slot_holds_a_and_b_of_every_matrix() -> None:
    """Llama-3.1-8B, rank 16: q and o 4096 + 4096, k and v 4096 + 1024, three of 4096 + 14336."""
    sizes = parts("llama3.1-8b", max_lora_rank=16)
    assert sizes["attention"] == 32 * 16 * 2 * (2 * 8192 + 2 * 5120)
    assert sizes["feed-forward"] == 32 * 16 * 2 * 3 * (4096 + 14336)


def test_slots_and_rank_multiply() -> None:
    """Four slots of rank 64 are sixteen times one of rank 16."""
    one, many = (
        parts("qwen2.5-7b", max_lora_rank=16),
        parts("qwen2.5-7b", max_lora_rank=64, max_loras=4),
    )
    assert many["attention"] == 16 * one["attention"]


def test_one_of_both_is_whole_on_each_rank() -> None:
    """Two ranks split q's outputs and o's inputs; the other side of an adapter is replicated."""
    sizes = parts("llama3.1-8b", max_lora_rank=16, tp=2)
    assert sizes["attention"] == 32 * 16 * 2 * (2 * (4096 + 2048) + 2 * (4096 + 512))


def test_words_of_adapters_had_room_until_0_12() -> None:
    """Every slot, its table and the model's two tables have 256 more rows."""
    vocab, hidden = 128256, 4096
    new = parts("llama3.1-8b", max_lora_rank=16, engine_version="0.12.0")["embedding and head"]
    old = parts("llama3.1-8b", max_lora_rank=16, engine_version="0.11.0")["embedding and head"]
    assert new == 16 * 2 * (vocab + hidden + hidden + vocab)
    assert old == 16 * 2 * (vocab + 256 + hidden + hidden + vocab + 256) + 4 * 256 * hidden * 2


@pytest.mark.parametrize(
    ("model", "version", "has"),
    [
        ("qwen2.5-7b", "0.11.0", False),
        ("qwen3-8b", "0.15.0", False),
        ("qwen3-8b", "0.16.0", True),
        ("lfm2-1.2b", "0.10.2", False),
        ("lfm2-1.2b", "0.11.0", True),
        ("apertus-8b", "0.11.0", True),
        ("llama3.1-8b", "0.7.3", True),
        ("llama4-scout", "0.11.0", False),
    ],
)
def test_not_every_model_has_slots_beside_its_embedding(
    model: str, version: str, has: bool
) -> None:
    """Qwen2's class has none, Qwen3's has them since 0.16, LFM2's and Apertus' since 0.11."""
    assert has_vocabulary_slots(run_and_shard(model, engine_version=version)[0]) is has


def experts(version: str, ep: int = 1) -> int:
    """Bytes of Qwen3-30B-A3B's slots for experts, without their routers (48 of 2048 x 128)."""
    run, shard = run_and_shard("qwen3-30b-a3b", max_lora_rank=16, engine_version=version)
    slots = adapter_slots(run, replace(shard, ep=ep))
    size = next(one.bytes for one in slots if one.name == "adapters: experts")
    return size - 16 * 2 * 48 * (2048 + 128)


def test_experts_have_slots_since_0_11_1() -> None:
    """128 experts of 768 in 48 layers; gate and up have an A each."""
    each = 2 * (2048 + 768) + (768 + 2048)
    assert experts("0.11.0") == 0
    assert experts("0.11.1") == 16 * 2 * 48 * 128 * each


def test_experts_are_spread_with_their_slots() -> None:
    """Eight-way expert parallelism leaves an eighth of the experts' slots."""
    assert experts("0.12.0", ep=8) == experts("0.12.0") // 8


def test_without_a_rank_there_is_nothing() -> None:
    """Without a rank there are no slots; max_loras without a rank is refused."""
    assert parts("llama3.1-8b") == {}
    run, _ = run_and_shard("llama3.1-8b", max_loras=2)
    assert [sentence.split(";")[0] for sentence in adapter_problems(run)] == [
        "inference.max_loras needs inference.max_lora_rank"
    ]


def test_a_rank_is_one_of_vllms() -> None:
    """For rank 20 the sentence suggests 32."""
    run, _ = run_and_shard("llama3.1-8b", max_lora_rank=20)
    assert next(adapter_problems(run)).endswith("try 32")
    assert not list(adapter_problems(run_and_shard("llama3.1-8b", max_lora_rank=64)[0]))
