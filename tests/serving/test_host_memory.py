"""What servers pin in host RAM: parameters, and caches behind the GPU's."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.ledger import CPU
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.run.served import WEIGHTS, ServerMemory

from . import vllm_servers
from .test_sglang import served
from .test_sglang_pools import SPARSE

# MiB in a layer of Llama-3.1-8B, and of their blocks: q, k and v; output; gate and up; down.
EXACT, PINNED = (48, 32, 224, 112), (64, 32, 256, 128)
NORMS = 2 * 2 * 4096  # bytes


def on_host(server: ServerMemory) -> dict[str, int]:
    """Bytes of each item in host RAM."""
    return {one.name.removeprefix("cache on the host: "): one.bytes for one in hosts(server)}


def hosts(server: ServerMemory) -> list[Any]:
    """Items in host RAM."""
    return [one for one in server.items if one.place == CPU]


@pytest.mark.parametrize("serve", [served, vllm_servers.served])
def test_offloaded_parameters_are_whole_and_pinned_alone(serve: Any) -> None:
    """4 GiB: ten layers but the last one's norms, which come behind its matrices."""
    plain, server = serve(enforce_eager=True), serve(cpu_offload_gb=4, enforce_eager=True)
    size = 10 * sum(EXACT) * MIB + 9 * NORMS
    assert 4 * GIB <= size < 4 * GIB + EXACT[-1] * MIB
    assert plain.figure(WEIGHTS) - server.figure(WEIGHTS) == pytest.approx(size, abs=2 * MIB)
    assert server.pool_bytes - plain.pool_bytes == pytest.approx(size, rel=0.001)
    pinned = 10 * sum(PINNED) * MIB + 9 * NORMS
    assert on_host(server) == {"offloaded parameters": pinned}


def test_a_ratio_of_the_pool() -> None:
    """hicache_ratio times the tokens, and a page."""
    server = served(hicache_ratio=2.0, gpu_memory_utilization=0.8)
    assert on_host(server) == {"cache on the host": (2 * server.tokens + 1) * server.token_bytes}


def test_torch_pins_a_power_of_two() -> None:
    """Until 0.5.4, as 4 x 40 GB filled a node of 256 GB (sgl-project/sglang#14282)."""
    for size, pinned in ((40, 64), (30, 32)):
        old = served(engine_version="0.5.3", hicache_size=size, gpu_memory_utilization=0.4)
        assert on_host(old) == {"cache on the host": pinned * GIB}
    new = on_host(served(hicache_size=40))["cache on the host"]
    assert new == pytest.approx(40 * 10**9, rel=1e-4)


def test_each_pool_had_the_whole_size() -> None:
    """Until 0.5.16; then they share it in proportion (sgl-project/sglang#32373)."""
    keys: dict[str, Any] = {"tensor_parallel_size": 4, "hicache_size": 40}
    for model in ("gpt-oss-20b", "qwen3-next-80b-a3b"):
        old = on_host(served(model, engine_version="0.5.16", **keys))
        assert list(old.values()) == pytest.approx([40 * 10**9] * 2, rel=0.01)
        new = on_host(served(model, engine_version="0.5.17", **keys))
        assert sum(new.values()) == pytest.approx(40 * 10**9, rel=0.01)
        assert len(new) == 2


def test_an_indexer_is_beside_the_size() -> None:
    """From 0.5.11 on (sgl-project/sglang#30581); 132 bytes for 1,152 of a token."""

    def keys(release: str) -> dict[str, int]:
        one = {"tensor_parallel_size": 8, "quantization": "fp8", "hicache_size": 60}
        server = served(SPARSE, "h200-141gb-sxm", engine_version=release, **one)
        return on_host(server)

    assert sum(keys("0.5.10").values()) == pytest.approx(60 * 10**9, rel=1e-3)
    late = keys("0.5.18")
    assert late["cache on the host"] == pytest.approx(60 * 10**9, rel=1e-3)
    assert late["indexer"] == pytest.approx(60 * 10**9 * 132 / 1152, rel=1e-3)


def test_a_draft_has_as_many_tokens_on_the_host() -> None:
    """From 0.5.11 on (sgl-project/sglang#35875)."""
    keys: dict[str, Any] = {"speculative_method": "standalone", "speculative_model": "llama3.2-1b"}
    keys |= {"num_speculative_tokens": 4, "hicache_ratio": 2.0}
    late = on_host(served(**keys, engine_version="0.5.18"))
    assert late["draft"] * 32 * 8 * 128 == late["cache on the host"] * 16 * 8 * 64
    assert "draft" not in on_host(served(**keys, engine_version="0.5.10"))


def test_own_draft_layers_are_part_of_the_size() -> None:
    """From 0.5.18 on they are packed with the model's."""
    keys = {"tensor_parallel_size": 8, "quantization": "fp8", "speculative_method": "nextn"}
    for release, beside in (("0.5.17", True), ("0.5.18", False)):
        found = on_host(
            served("deepseek-v3", "h200-141gb-sxm", engine_version=release, hicache_size=40, **keys)
        )
        assert ("draft" in found) == beside
        assert found["cache on the host"] == pytest.approx(40 * 10**9, rel=1e-3)


def test_what_sglang_refused() -> None:
    """Models with a second pool, and caches smaller than the GPU's, by release."""
    for model, last, first in (
        ("gpt-oss-20b", "0.5.12", "0.5.13"),
        ("qwen3-next-80b-a3b", "0.5.9", "0.5.10"),
    ):
        keys: dict[str, Any] = {"hicache_ratio": 2.0, "tensor_parallel_size": 4}
        old = served(model, engine_version=last, **keys).problem
        assert f"SGLang before {first} has no hierarchical cache" in old
        assert not served(model, engine_version=first, **keys).problem
    small = served(engine_version="0.5.14", hicache_size=20).problem
    assert "SGLang before 0.5.15 refuses a smaller cache" in small
    assert "Use 5" in small
    assert not served(engine_version="0.5.15", hicache_size=20).problem
    same = served(engine_version="0.5.9", hicache_ratio=1.0).problem
    assert "--hicache-ratio holds" in same


def test_vllm_pins_a_tensor_for_each_layer() -> None:
    """28 layers of 4 GiB of swap space, or of a second cache, take more than they are asked for."""
    model = "qwen2.5-7b"
    assert on_host(vllm_servers.served(model, engine_version="0.7.3")) == {
        "swap space": 28 * 256 * MIB
    }
    for release, taken in (("0.11.1", 28 * GIB), ("0.14.0", 32 * GIB), ("0.27.0", 20 * GIB)):
        server = vllm_servers.served(model, engine_version=release, kv_offloading_size=20)
        assert on_host(server) == {"offloaded cache": taken}


def test_lmcache_pins_its_size_on_each_rank() -> None:
    """max_local_cpu_size without rounding, and 256 tokens on the GPU; the pool stays."""
    plain = vllm_servers.served(engine_version="0.11.0")
    server = vllm_servers.served(engine_version="0.11.0", lmcache_size=20)
    assert on_host(server) == {"LMCache": 20 * GIB}
    assert server.pool_bytes == plain.pool_bytes
    assert vllm_servers.item(server, "LMCache: a chunk") == 256 * server.token_bytes


def test_a_cache_on_the_host_holds_no_running_sequence() -> None:
    """One of max_model_len must be on the GPU (vllm-project/vllm#23087, LMCache/LMCache#1372)."""
    for keys in ({"lmcache_size": 20}, {"kv_offloading_size": 20}):
        problem = vllm_servers.served(gpu="rtx-4090", max_seq_len=65536, **keys).problem
        assert "one sequence of 65,536 tokens needs 8.0 GiB" in problem
        assert "A cache on the host does not change that" in problem
    plain = vllm_servers.served(gpu="rtx-4090", max_seq_len=65536).problem
    assert plain
    assert "host" not in plain


def test_a_sleeping_server_pins_each_segment() -> None:
    """Of Qwen2.5-7B's layers gate and up are 259 MiB in 512, down 130 in 256."""
    host = vllm_servers.served("qwen2.5-7b", enable_sleep_mode=True).host
    assert host is not None
    layers, vocabulary = 28 * (512 + 256 + 32 + 32), 2 * 2048
    assert host.asleep_bytes == pytest.approx((layers + vocabulary) * MIB, rel=0.02)


def test_tensorrt_llms_cache_on_the_host() -> None:
    """host_cache_size of each rank, beside a pool that stays."""
    plain, server = (
        full_estimate(
            {
                "model": {"name": "llama3.1-8b"},
                "inference": {"engine": "tensorrt_llm", "tensor_parallel_size": 2, **keys},
                "hardware": {"gpu": "h100-80gb-sxm"},
            }
        )
        for keys in ({}, {"host_cache_size": 40 * GIB})
    )
    assert on_host(server.served[0]) == {"cache on the host": 40 * GIB}
    assert server.served[0].pool_bytes == plain.served[0].pool_bytes
    more = server.result.phases[-1].host_bytes - plain.result.phases[-1].host_bytes
    assert more == 2 * 40 * GIB
