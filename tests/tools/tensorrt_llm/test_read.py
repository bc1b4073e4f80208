"""Commands of trtllm-serve, and the YAML file of --extra_llm_api_options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.tools.reading_of import reading_of

MODEL = "trtllm-serve Qwen/Qwen3-8B"


def test_options_are_keys() -> None:
    """The options of trtllm-serve, under any of their names."""
    line = f"{MODEL} --tp_size 2 --ep_size 1 --max_batch_size 64 --max_num_tokens 4096"
    reading = reading_of(f"{line} --max_seq_len 8192 --kv_cache_free_gpu_memory_fraction 0.8")
    keys = {"tensor_parallel_size": 2, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
    assert reading.run["inference"].items() >= (keys | {"gpu_memory_utilization": 0.8}).items()
    assert reading.run["hardware"] == {"num_gpus": 2}
    assert not reading.limits
    assert not reading.problems
    assert full_estimate(reading.run | {"hardware": {"gpu": "h200", "num_gpus": 2}})


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("kv_cache_config: {free_gpu_memory_fraction: 0.5}", {"gpu_memory_utilization": 0.5}),
        ("kv_cache_config: {dtype: fp8}", {"kv_cache_dtype": "fp8"}),
        ("kv_cache_config: {max_tokens: 9000}", {"max_total_tokens": 9000}),
        ("kv_cache_config: {tokens_per_block: 64}", {"block_size": 64}),
        ("cuda_graph_config: null", {"enforce_eager": True}),
        ("cuda_graph_config: {max_batch_size: 8}", {"cuda_graph_max_bs": 8}),
        ("cuda_graph_config: {batch_sizes: [1, 4, 2]}", {"cuda_graph_max_bs": 4}),
        ("max_batch_size: 7", {"max_num_seqs": 7}),
        ("dtype: float16", {"dtype": "fp16"}),
        ("lora_config: {max_lora_rank: 16}", {"max_lora_rank": 16}),
        (
            "speculative_config: {decoding_type: NGram, max_draft_len: 4}",
            {"speculative_method": "ngram", "num_speculative_tokens": 4},
        ),
    ],
)
def test_the_file_wins_over_options(tmp_path: Path, text: str, keys: dict[str, Any]) -> None:
    """A key of the file has the same meaning as an option, and replaces it."""
    (tmp_path / "extra.yaml").write_text(text, encoding="utf-8")
    line = f"{MODEL} --max_batch_size 3 --extra_llm_api_options extra.yaml"
    reading = reading_of(line, tmp_path)
    assert not reading.problems
    assert reading.run["inference"].items() >= keys.items()


def test_what_is_not_modelled_is_a_limit(tmp_path: Path) -> None:
    """Attention on every rank takes more; keys at their defaults are no limits."""
    text = "enable_attention_dp: true\nmoe_config: {backend: AUTO}\nspeculative_config: "
    (tmp_path / "a.yaml").write_text(text + "{decoding_type: MTP}", encoding="utf-8")
    reading = reading_of(f"{MODEL} --tp_size 2 --config a.yaml", tmp_path)
    limits = {one.key: one.could for one in reading.limits}
    assert limits == {
        "enable_attention_dp=true": "more",
        "speculative_config.decoding_type=MTP": "more",
    }
    alone = reading_of(f"{MODEL} --config a.yaml", tmp_path).limits
    assert [one.key for one in alone] == ["speculative_config.decoding_type=MTP"]


@pytest.mark.parametrize(
    ("line", "text", "sentence"),
    [
        ("trtllm-serve", "", "names no model"),
        ("trtllm-serve disaggregated", "", "is not read"),
        (f"{MODEL} --config a.yaml", "- 1", "must name a file of keys"),
        (f"{MODEL} --config a.yaml", "kv_cache_config: 3", "must have keys of its own"),
        (f"{MODEL} --config a.yaml", "dtype: int3", "dtype='int3'"),
        (f"{MODEL} --config a.yaml", "a: [" * 200, "nested"),
        (f"{MODEL} --config b.yaml", "", "no such file"),
    ],
)
def test_malformed_commands_get_a_sentence(
    tmp_path: Path, line: str, text: str, sentence: str
) -> None:
    """What is wrong, and where."""
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        reading_of(line, tmp_path)


def test_an_unknown_key_is_a_problem(tmp_path: Path) -> None:
    """Nothing is dropped."""
    (tmp_path / "a.yaml").write_text("kv_cache_config: {max_token: 1}", encoding="utf-8")
    reading = reading_of(f"{MODEL} --config a.yaml --tpsize 2", tmp_path)
    assert "did you mean 'kv_cache_config.max_tokens'?" in reading.problems[-1]
    assert "--tpsize is not an option" in reading.problems[0]
