"""SGLang's pools: latents, indexes, windows, states and heads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.units import GIB

from .test_sglang import ROWS, item, served
from .vllm_servers import R1

SPARSE = {
    **R1,
    "model_type": "deepseek_v32",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
}


def test_a_cap_is_exact() -> None:
    """A page more than max_total_tokens is allocated, for padding."""
    server = served(max_total_tokens=20480)
    assert server.tokens == 20480
    assert server.pool_bytes == 20481 * 32 * 2 * 8 * 128 * 2


def test_latents_are_replicated() -> None:
    """DeepSeek-V3: 61 layers of 576 elements on every rank; 35,136 bytes in fp8."""
    for tp, dtype, size in ((8, "auto", 2), (8, "fp8", 1), (16, "fp8", 1)):
        server = served(
            "deepseek-v3",
            "b200-180gb-sxm",
            tensor_parallel_size=tp,
            kv_cache_dtype=dtype,
            quantization="fp8",
        )
        assert server.token_bytes == 61 * 576 * size


def test_sparse_latents_keep_an_index() -> None:
    """788 bytes a layer in fp8 (GLM-5, 78 layers: 186.77 GiB for 3,262,823 tokens), else 1,284."""
    hopper = served(SPARSE, "h200-141gb-sxm", tensor_parallel_size=8, quantization="fp8")
    assert hopper.token_bytes == 61 * (576 * 2 + 132)
    blackwell = served(SPARSE, "b200-180gb-sxm", tensor_parallel_size=8, quantization="fp8")
    assert blackwell.token_bytes == 61 * (512 + 4 * 4 + 64 * 2 + 132)
    assert blackwell.token_bytes // 61 == pytest.approx(186.77 * GIB / 3_262_823 / 78, rel=1e-4)
    assert hopper.tokens % 64 == 0


def test_heads_are_repeated_where_there_are_more_ranks() -> None:
    """Llama-3.1-8B has 8 key-value heads; 16 ranks have one each."""
    assert served(tensor_parallel_size=8).token_bytes == 32 * 2 * 128 * 2
    assert served(tensor_parallel_size=16).token_bytes == 32 * 2 * 128 * 2


def test_layers_with_a_window_have_a_separate_pool() -> None:
    """gpt-oss from 0.5.8 on: 0.8 tokens there for each of the others; before, all alike."""
    server = served("gpt-oss-20b", gpu_memory_utilization=0.8)
    whole = served("gpt-oss-20b", gpu_memory_utilization=0.8, engine_version="0.5.7")
    windowed = item(server, "keys and values of layers with a window")
    assert windowed / item(server, "keys and values") == pytest.approx(0.8, abs=1e-4)
    assert (server.token_bytes, whole.token_bytes) == (12 * 2048, 24 * 2048)
    assert server.tokens / whole.tokens == pytest.approx(2 / 1.8, rel=0.01)
    assert server.sequences(131_072) == pytest.approx(server.tokens / 131_072, rel=1e-3)


def test_gemma_keeps_every_token_in_its_windows() -> None:
    """SGLang turns the pool for windows off for Gemma 2 and 3."""
    server = served("gemma2-9b")
    assert server.token_bytes == 42 * 2 * 8 * 256 * 2


def test_states_have_slots() -> None:
    """granite-4.0-h-micro on 16 GB: 38 slots of a log, of which a request may hold three."""
    rows = map(json.loads, ROWS.read_text().splitlines())
    row = next(row for row in rows if "granite" in row["id"])
    server = full_estimate(row["config"]).served[0]
    assert server.most_sequences == 38 // 3
    assert any(note.startswith("state-space layers have 38 states, 3 per") for note in server.notes)
    assert server.sequences(1000) == pytest.approx(38 / 3, rel=1e-3)


def test_one_state_a_request_where_no_prefix_is_kept() -> None:
    """Then max_running_requests says how many; a log on a GB10 has all the rest for tokens."""
    options: dict[str, Any] = {"gpu_memory_utilization": 0.85, "max_num_seqs": 32}
    shared = served("qwen3.6-27b", **options)
    alone = served("qwen3.6-27b", disable_radix_cache=True, **options)
    assert any(note.startswith("state-space layers have 32 states, 1 per") for note in alone.notes)
    assert item(alone, "states") == 33 * item(shared, "states") // 51
    assert alone.tokens > shared.tokens


def test_a_state_has_16_bits_in_its_convolution_and_32_in_its_recurrence() -> None:
    """Three of four layers have 3 columns of 512 channels, and 4 maps of 32 x 64; 33 slots."""
    config = {
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }
    alone = served(config, disable_radix_cache=True, max_num_seqs=32, max_seq_len=4096)
    assert item(alone, "states") == 33 * 3 * (3 * 512 * 2 + 4 * 32 * 64 * 4)
