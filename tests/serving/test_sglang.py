"""SGLang: figures of its logs and of its source; its pools have a file of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.served import ACTIVATION, GRAPHS, POOL, SERVING, WEIGHTS, ServerMemory
from gpu_mem_calculator.runfile.text.errors import InputError

ROWS = Path(__file__).parents[1] / "ground_truth" / "serving_sglang.jsonl"
# Mean and worst of the absolute error over public logs, in percent. A pool of 0.24 GiB is printed
# with two digits: that alone is 2 % there.
BUDGETS = {
    "weights_bytes": (0.4, 2.4),
    "kv_pool_bytes": (0.5, 2.4),
    "kv_tokens": (0.2, 1.0),
    "graph_bytes": (12, 30),
}


def served(
    model: str | dict[str, Any] = "llama3.1-8b", gpu: str = "h100-80gb-sxm", **inference: Any
) -> ServerMemory:
    """One server, by default on an idle H100."""
    free = inference.pop("free", None)
    hardware: dict[str, Any] = {"gpu": gpu}
    if free is not None:
        hardware["available_memory_bytes"] = int(free * GIB)
    section = {"name": model} if isinstance(model, str) else {"config": model}
    server = full_estimate(
        {"model": section, "inference": {"engine": "sglang", **inference}, "hardware": hardware}
    )
    return server.served[0]


def item(server: ServerMemory, name: str) -> int:
    """Bytes of one item."""
    return sum(one.bytes for one in server.items if one.name == name)


def test_public_logs() -> None:
    """Weights, pools and tokens of 28 start-ups, 0.4.1 to 0.5.19, are what the logs print."""
    errors: dict[str, list[float]] = {}
    for line in ROWS.read_text().splitlines():
        row = json.loads(line)
        result = full_estimate(row["config"]).result.serving
        assert result is not None
        assert not result.problem, row["id"]
        for name, figure in row["measured"].items():
            error = 100 * abs(getattr(result, name) - figure) / figure
            errors.setdefault(name, []).append(error)
    assert sum(map(len, errors.values())) >= 70
    for name, (mean, worst) in BUDGETS.items():
        assert sum(errors[name]) / len(errors[name]) <= mean, name
        assert max(errors[name]) <= worst, name


def test_what_is_free_after_the_pool() -> None:
    """Llama-3.2-1B, H100, 2025-02: 78.81 GiB free, 7.43 after the pool and the requests' table."""
    server = served("llama3.2-1b", engine_version="0.4.3", gpu_memory_utilization=0.88, free=78.81)
    taken = server.figure(WEIGHTS) + server.pool_bytes + item(server, "table of requests")
    taken += item(server, "between the pool's buffers")
    assert 78.81 - taken / GIB == pytest.approx(7.43, abs=0.02)


def test_an_idle_card_has_as_much_free_as_logs_say() -> None:
    """78.50 to 78.81 GiB of an H100 in SGLang's own logs."""
    options = served(gpu_memory_utilization=0.8, free=78.58)
    assert served(gpu_memory_utilization=0.8).tokens == pytest.approx(options.tokens, rel=0.003)


def test_adapters() -> None:
    """Two adapters of rank 256 on every projection of Llama-3.1-8B: 2.5 GiB.

    A log of 2026-06: 63.48 GiB free after the weights, 58.26 after adapters, pool and table.
    """
    server = served(max_lora_rank=256, max_loras=2, max_total_tokens=20480, max_num_seqs=128)
    assert item(server, "adapters") / GIB == pytest.approx(2.5, abs=0.001)
    taken = item(server, "adapters") + server.pool_bytes + item(server, "table of requests")
    taken += item(server, "between the pool's buffers")
    assert taken / GIB == pytest.approx(63.48 - 58.26, abs=0.04)


@pytest.mark.parametrize("dp", [1, 2])
def test_data_parallel_attention_is_not_sharded(dp: int) -> None:
    """With data-parallel attention a rank has all heads, and its experts are sharded as before."""
    inference: dict[str, Any] = {"tensor_parallel_size": 2, "expert_parallel_size": 2}
    if dp > 1:
        inference |= {"enable_dp_attention": True, "data_parallel_size": dp}
    server = served("qwen3-30b-a3b", **inference)
    assert server.token_bytes == 48 * 2 * (4 * dp // 2) * 128 * 2
    whole = served("qwen3-30b-a3b")
    assert 2 * item(server, "experts") == pytest.approx(item(whole, "experts"), rel=0.001)
    assert item(server, "attention") == pytest.approx(item(whole, "attention") * dp / 2, rel=0.001)


def test_a_draft_is_counted_from_0_5_14() -> None:
    """Its layers are part of a token's bytes then; before, they use memory outside the pool."""
    head = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    options: dict[str, Any] = {
        "speculative_method": "eagle",
        "speculative_model": head,
        "num_speculative_tokens": 4,
        "gpu_memory_utilization": 0.8,
    }
    alone = served(gpu_memory_utilization=0.8)
    new, old = served(**options), served(**options, engine_version="0.5.13")
    drafted = item(new, "draft: keys and values")
    assert drafted == (new.tokens + 1) * 2 * 8 * 128 * 2
    assert new.tokens < alone.tokens * 32 / 33
    assert old.tokens == pytest.approx(alone.tokens, rel=0.001)
    assert item(new, "draft: parameters") / GIB == pytest.approx(0.47, abs=0.01)


def test_multi_token_prediction_is_a_layer_more() -> None:
    """DeepSeek-V3's own: 62 layers of cache for 61."""
    server = served(
        "deepseek-v3",
        "h200-141gb-sxm",
        tensor_parallel_size=8,
        quantization="fp8",
        speculative_method="nextn",
    )
    assert item(server, "draft: keys and values") * 61 == item(server, "keys and values")


def test_eager_has_no_graphs() -> None:
    """--disable-cuda-graph stops decode graphs, and those of prefill from 0.5.14 on."""
    assert served(enforce_eager=True).figure(GRAPHS) == 0
    assert served(enforce_eager=True, engine_version="0.5.12").figure(GRAPHS) > 0
    assert served(enforce_eager=True, engine_version="0.5.9").figure(GRAPHS) == 0


def test_a_longer_chunk_needs_more() -> None:
    """Activations grow with the tokens of a prefill, not with the context."""
    one, two = served(chunked_prefill_size=4096), served(chunked_prefill_size=8192)
    small, large = (item(server, "prefill of a chunk") for server in (one, two))
    assert large == 2 * small
    # gate and up, their product, the output, the input and the residual of 8,192 tokens
    assert large == 8192 * 2 * (3 * 14336 + 3 * 4096)
    assert one.figure(ACTIVATION) < two.figure(ACTIVATION)


def test_stages() -> None:
    """A remainder of layers is spread over the last stages; before 0.5.6 the last has all of it."""
    options: dict[str, Any] = {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 3,
        "quantization": "fp8",
    }
    file = {
        "model": {"name": "deepseek-v3"},
        "hardware": {"gpu": "h200-141gb-sxm"},
        "inference": {"engine": "sglang", **options},
    }
    layers = [stage.num_layers for stage in full_estimate(file).result.stages]
    assert layers == [20, 20, 21]
    file["inference"] = {"engine": "sglang", "engine_version": "0.4.9", **options}
    assert [s.num_layers for s in full_estimate(file).result.stages] == [20, 20, 21]


@pytest.mark.parametrize(
    ("inference", "words"),
    [
        ({"kv_cache_dtype": "int8"}, "is not one of SGLang's"),
        ({"enable_dp_attention": True}, "data_parallel_size above 1"),
        ({"expert_parallel_size": 3}, "does not divide tensor_parallel_size=1"),
        ({"speculative_method": "eagle3"}, "needs inference.speculative_model"),
        ({"speculative_method": "nextn"}, "no multi-token-prediction layers"),
        ({"speculative_method": "lookahead"}, "is not modelled"),
        ({"num_speculative_tokens": 4}, "needs inference.speculative_method"),
        ({"max_loras": 4}, "needs inference.max_lora_rank"),
        ({"kv_cache_dtype": "fp16"}, "is not one of SGLang's"),
        ({"quantization": "q4_k_m"}, "GGUF"),
        ({"engine_version": "newest"}, "is not a version"),
        ({"block_size": 16}, "not an option of SGLang"),
    ],
)
def test_what_is_refused(inference: dict[str, Any], words: str) -> None:
    """One sentence, with the value and what to do."""
    with pytest.raises(InputError, match=words):
        served(**inference)


def test_families_without_a_model() -> None:
    """SGLang has Mamba-2 since 0.5.20, which is not modelled."""
    with pytest.raises(InputError, match=r"serves mamba2 from 0\.5\.20 on"):
        served("mamba2-2.7b")


def test_why_it_does_not_start() -> None:
    """Weights that do not fit, a share that leaves no cache, and one that leaves too little."""
    assert "weights need" in served("llama3.1-70b").problem
    tight = served("qwen3-32b", gpu_memory_utilization=0.7)
    assert "leaves none for the KV cache" in tight.problem
    assert tight.tokens == 0
    full = served(gpu_memory_utilization=0.99)
    assert "Lower it to 0.9" in full.problem
    assert not served(gpu_memory_utilization=0.9).problem


def test_the_command_has_what_is_not_default() -> None:
    """Flags by SGLang's names, and nothing that it would choose itself."""
    words = served(
        kv_cache_dtype="fp8",
        tensor_parallel_size=2,
        gpu_memory_utilization=0.8,
        max_num_seqs=64,
        enforce_eager=True,
        cuda_graph_max_bs=32,
    ).command
    text = " ".join(words)
    assert text.startswith("python -m sglang.launch_server --model-path MODEL ")
    for flag in (
        "--tp-size 2",
        "--mem-fraction-static 0.8",
        "--max-running-requests 64",
        "--kv-cache-dtype fp8_e4m3",
        "--disable-cuda-graph",
        "--cuda-graph-max-bs-decode 32",
    ):
        assert flag in text
    assert "--dp-size" not in text
    assert "--dtype" not in text
    assert len(served().command) == 5


def test_versions_that_were_not_read_say_so() -> None:
    """A newer one has the newest rules."""
    server = served(engine_version="0.9.0", gpu_memory_utilization=0.8)
    assert "SGLang 0.9.0 is newer than 0.5.23, whose rules are used" in server.notes
    assert server.tokens == served(gpu_memory_utilization=0.8).tokens


def test_needs_is_a_card_it_starts_on() -> None:
    """On a card of needs_bytes, one sequence of the context fits; on less than its weights none."""
    server = served("qwen2.5-7b", max_seq_len=8192, max_num_seqs=16)
    file = {
        "model": {"name": "qwen2.5-7b"},
        "inference": {
            "engine": "sglang",
            "max_seq_len": 8192,
            "max_num_seqs": 16,
            "gpu_memory_utilization": 0.88,
            "chunked_prefill_size": 8192,
        },
        "hardware": {"gpu_memory_bytes": int(server.needs_bytes * 1.1)},
    }
    again = full_estimate(file).served[0]
    assert not again.problem
    assert again.tokens >= 8192


def test_more_ranks_hold_more() -> None:
    """Tokens grow with tensor parallelism, and double with an fp8 cache."""
    counts = [served("qwen3-8b", tensor_parallel_size=tp).tokens for tp in (1, 2, 4, 8)]
    assert counts == sorted(counts)
    plain, half = (
        served(kv_cache_dtype=name, gpu_memory_utilization=0.8) for name in ("auto", "fp8")
    )
    assert half.tokens == pytest.approx(2 * plain.tokens, rel=1e-5)


def test_the_ledger_adds_up() -> None:
    """Every item is on the ledger that training has."""
    server = served()
    assert int(server.ledger.at(SERVING)) == sum(one.bytes for one in server.items)
    assert server.figure(POOL) == server.pool_bytes
