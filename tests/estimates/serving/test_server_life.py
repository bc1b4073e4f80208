"""A server's life: its phases on a GPU and on its node."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.result import MemoryResult
from gpu_mem_calculator.estimates.verdict_words import undecided, verdict_line
from gpu_mem_calculator.ledger.units import GIB, MIB


def result(
    engine: str, model: str = "llama3.1-8b", node: float | None = None, **keys: Any
) -> MemoryResult:
    """A server on H100s of one node, which has `node` GiB."""
    hardware = {"gpu": "h100-80gb-sxm"} | ({} if node is None else {"node_memory_gb": node})
    inference = {"engine": engine, **keys}
    data = {"model": {"name": model}, "inference": inference, "hardware": hardware}
    return full_estimate(data, replay=False).result


def test_every_server_has_its_phases() -> None:
    """They begin with loading, and serving takes most of the GPU."""
    for engine in ("vllm", "sglang", "tgi", "tensorrt_llm", "llamacpp"):
        phases = result(engine).phases
        assert (phases[0].name, phases[-1].name) == ("loading", "serving")
        assert phases[-1].gpu_bytes == max(one.gpu_bytes for one in phases)
        assert phases[0].file_bytes > 4 * GIB


def test_each_rank_of_a_node_offloads() -> None:
    """`cpu_offload_gb` and swap space are of each rank, a second cache is shared by them."""
    plain = result("vllm", tensor_parallel_size=4).phases[-1].host_bytes

    def more(**keys: Any) -> float:
        found = result("vllm", tensor_parallel_size=4, **keys).phases[-1].host_bytes
        return (found - plain) / GIB

    assert more(cpu_offload_gb=2) == pytest.approx(4 * 2 * 480 / 416, rel=0.01)  # pinned blocks
    assert more(kv_offloading_size=64) == 64
    ratio = result("sglang", hicache_ratio=2.0)
    pool = ratio.serving.kv_pool_bytes if ratio.serving else 0
    without = result("sglang").phases[-1].host_bytes
    assert ratio.phases[-1].host_bytes - without == pytest.approx(2 * pool, rel=1e-4)
    fixed = result("sglang", hicache_size=30).phases[-1].host_bytes
    assert fixed - without == pytest.approx(30 * 10**9, rel=1e-4)


def test_a_sleeping_server_has_its_weights_on_the_host() -> None:
    """At level 1, each segment in a pinned block; the GPU keeps graphs and libraries."""
    found = result("vllm", enable_sleep_mode=True)
    asleep, serves = found.phases[-1], found.phases[-2]
    assert asleep.name == "asleep"
    assert found.serving is not None
    copies = asleep.host_bytes - serves.host_bytes
    # of 32 layers 480 MiB for 416, of embedding and head 1 GiB for 1,002 MiB
    assert copies == pytest.approx((32 * 480 + 2 * 1024) * MIB, rel=0.005)
    assert found.serving.weights_bytes < copies
    assert asleep.gpu_bytes < 4 * GIB


def test_the_node_is_part_of_the_verdict() -> None:
    """What a node does not have is said, with the phase."""
    keys = {"enable_sleep_mode": True}
    assert result("vllm", node=64, **keys).verdict == "fits"
    short = result("vllm", node=8, **keys)
    assert short.verdict == "does_not_fit"
    assert "18 GiB of host RAM a node while it sleeps, of 8" in verdict_line(short)


def test_layers_on_the_host_need_its_memory() -> None:
    """What a card does not take must be in host RAM."""
    spilled = result("llamacpp", "llama3.1-405b", node=128, max_seq_len=4096)
    assert spilled.spills
    assert spilled.verdict == "does_not_fit"
    assert spilled.host is not None
    assert spilled.host.bytes_per_node > 128 * GIB
    assert result("llamacpp", "llama3.1-405b", node=512, max_seq_len=4096).verdict == "fits"


def test_fp8_is_made_of_whole_weights() -> None:
    """SGLang and vLLM before 0.13 load a checkpoint in 16 bits first."""
    for engine, keys in (("sglang", {}), ("vllm", {"engine_version": "0.12.0"})):
        warnings = result(engine, "llama3.1-70b", quantization="fp8", **keys).warnings
        assert any("with a checkpoint in 16 bits loading needs 13" in one for one in warnings)
    newest = result("vllm", "llama3.1-70b", quantization="fp8").warnings
    assert not any("16 bits" in one for one in newest)


def test_pages_of_files_must_be_given_back_on_a_shared_memory() -> None:
    """While a server starts on a DGX Spark, where pool and files are more than it has
    (vllm-project/vllm#46307); the cache of images, which requests fill, is not there yet.
    """

    def spark(share: float, **keys: Any) -> MemoryResult:
        data = {
            "model": {"name": "gemma4-26b-a4b"},
            "inference": {"engine": "vllm", "gpu_memory_utilization": share, **keys},
            "hardware": {"gpu": "dgx-spark", "node_memory_gb": 119},
        }
        return full_estimate(data, replay=False).result

    open_ = spark(0.7)
    assert open_.verdict == "cannot_tell"
    assert open_.host is not None
    assert open_.host.pages_bytes == open_.phases[0].file_bytes
    assert "beside 47 GiB of pages of the files that it reads" in undecided(open_)[0]
    small = spark(0.52, max_seq_len=8192)
    assert small.verdict == "fits"
    assert small.host is not None
    assert not small.host.pages_bytes
