"""Weights of a rank: groups that sum to the total, and the figures of vLLM's logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.run.weights import FormatError, find_format
from gpu_mem_calculator.run.weights.rank_weights import (
    ROUNDED,
    allocated_bytes,
    rotary_tables,
    weight_items,
    weights_bytes,
)
from gpu_mem_calculator.run.weights.shards import ServerShard
from gpu_mem_calculator.serving.vllm.weights import ABSORBED, UNPACKED, rank_weights
from tests.serving.vllm_runs import GIB, run_and_shard

MIB = 2**20
LOGS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "ground_truth/vllm_weights.jsonl")
    .read_text()
    .splitlines()
]


def rank(model: str | dict[str, Any], **options: Any) -> tuple[Run, ServerShard]:
    """A run and its shard, with the vocabulary padded as vLLM does."""
    run, shard = run_and_shard(model, **options)
    return run, replace(shard, vocab_multiple=64)


def logged(log: dict[str, Any]) -> tuple[Run, ServerShard]:
    """The run and shard of a log."""
    known = ("tp", "pp", "quantized", "quantization", "engine_version")
    options: dict[str, Any] = {key: log[key] for key in known if key in log}
    if "stage" in log:
        options["places"] = range(*log["stage"])
    run, shard = rank(log["model"], **options, max_seq_len=0)
    if positions := log.get("max_position_embeddings"):
        run = replace(run, arch=replace(run.arch, max_seq_len=positions))
    return run, shard


@pytest.mark.parametrize("log", LOGS, ids=[log["id"] for log in LOGS])
def test_a_rank_weighs_what_vllm_says_that_loading_took(log: dict[str, Any]) -> None:
    """Within a thousandth, or the last printed digit; with a tower, within two thousandths."""
    gib = weights_bytes(rank_weights(*logged(log))) / GIB
    digit = 0.5 * 10 ** -log["decimals"]
    share = 1e-3 if isinstance(log["model"], str) else 2e-3
    assert gib == pytest.approx(log["weights_gib"], abs=max(digit, log["weights_gib"] * share))


def test_all_logs_together_are_nearly_exact() -> None:
    """The mean error over every log is small; rounding in the log is ignored."""
    wrong = [
        abs(weights_bytes(rank_weights(*logged(log))) / GIB / log["weights_gib"] - 1)
        for log in LOGS
    ]
    assert sum(wrong) / len(wrong) < 4e-4


def test_groups_are_what_people_know() -> None:
    """A dense model in bf16 has the usual groups."""
    run, shard = rank("llama3-8b")
    groups = dict(weight_items(run, shard, rounded=False))
    assert set(groups) == {"embedding", "attention", "feed-forward", "norms", "output head"}
    assert groups["feed-forward"] == 32 * 3 * 4096 * 14336 * 2
    assert weights_bytes(groups.items()) == run.arch.num_parameters * 2


def test_experts_and_scales_are_groups_of_their_own() -> None:
    """A mixture in a 4-bit format has groups for experts and for scales."""
    run, shard = rank("mixtral-8x7b", quantization="awq")
    names = [name for name, _ in weight_items(run, shard, rounded=False)]
    assert {"experts", "experts: scales", "attention: scales"} <= set(names)


def test_a_given_parameter_count_scales_the_weights() -> None:
    """7 of 8.03 billion parameters scale the bytes."""
    run, shard = rank("llama3-8b")
    scaled_run = replace(run, parameters_given=7_000_000_000)
    scaled_bytes = weights_bytes(weight_items(scaled_run, shard, rounded=False))
    assert scaled_bytes == pytest.approx(14e9, rel=1e-8)


def test_large_blocks_keep_what_is_left_of_their_segment() -> None:
    """Up to 1 MiB of 2 stays with the block; more is split off and free."""
    assert allocated_bytes([135 * MIB]) == 136 * MIB
    assert allocated_bytes([134 * MIB + MIB // 2]) == 134 * MIB + MIB // 2
    assert allocated_bytes([136 * MIB, 100]) == 136 * MIB + 512


def test_the_rounding_is_an_item_where_it_is_worth_one() -> None:
    """Three matrices of a layer of Qwen2.5-32B are odd MiB on two ranks; on one, two tables are."""
    assert dict(weight_items(*rank("qwen2.5-32b", tp=2)))[ROUNDED] == 192 * MIB
    assert dict(weight_items(*rank("qwen2.5-32b")))[ROUNDED] == 2 * MIB


def test_rotary_tables_are_shared_by_all_layers_of_a_kind() -> None:
    """One for Llama, two for Gemma 3 (one scaled), in fp32 for gpt-oss, none for ALiBi."""
    for model, sizes in (
        ("llama3.1-8b", [131072 * 128 * 2]),
        ("gemma3-1b", [131072 * 256 * 2] * 2),
        ("gemma3-27b", [131072 * 128 * 2, 8 * 131072 * 128 * 2]),
        ("gpt-oss-20b", [131072 * 64 * 4]),
        ("deepseek-v3", [163840 * 64 * 2]),
        ("mpt-7b", []),
    ):
        run, shard = rank(model)
        tables = rotary_tables(run.arch, shard, max(run.arch.max_seq_len, 131072), 16)
        assert [size for _, size in tables] == sizes


def test_latent_attention_keeps_16_bit_copies_of_a_quantized_projection() -> None:
    """An unquantized projection has none, since they are views."""
    copies = 61 * 16 * 256 * 512 * 2
    fp8 = dict(rank_weights(*rank("deepseek-v3", tp=8, quantization="fp8")))
    assert fp8[UNPACKED] == copies
    assert ABSORBED not in fp8
    assert UNPACKED not in dict(rank_weights(*rank("deepseek-v3", tp=8)))
    early = dict(
        rank_weights(*rank("deepseek-v3", tp=8, quantization="fp8", engine_version="0.7.3"))
    )
    assert early[UNPACKED] == copies
    assert early[ABSORBED] == 61 * 16 * (1536 * 512 + 512 * 7168 + 1536 * 64 * 2)


def test_a_head_is_on_every_stage_where_the_family_s_code_makes_it_there() -> None:
    """Qwen3-MoE has it, Qwen3 does not, DeepSeek only before 0.8."""
    first = range(10)
    assert "output head" in dict(rank_weights(*rank("qwen3-30b-a3b", pp=2, places=first)))
    assert "output head" not in dict(rank_weights(*rank("qwen3-32b", pp=2, places=first)))
    old, new = (
        dict(rank_weights(*rank("deepseek-v3", pp=2, places=first, engine_version=version)))
        for version in ("0.7.3", "0.11.0")
    )
    assert "output head" in old
    assert "output head" not in new


def test_an_engine_s_own_form_of_a_format_can_be_weighed() -> None:
    """The caller can pass the format."""
    run, shard = rank("llama3-8b")
    half = weights_bytes(weight_items(run, shard, find_format("int4"), rounded=False))
    assert half < weights_bytes(weight_items(run, shard, find_format("fp8"), rounded=False))


def test_a_format_for_experts_is_refused_for_a_model_without() -> None:
    """MXFP4 of a dense model is refused."""
    with pytest.raises(FormatError, match="packs experts alone, and the model has none"):
        weight_items(*rank("llama3-8b", quantization="mxfp4"))
