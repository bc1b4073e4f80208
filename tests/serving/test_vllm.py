"""vLLM: figures of its logs and of its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.server_result import serving_result
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.run.served import ACTIVATION, GRAPHS, NON_TORCH, POOL, WEIGHTS, ServerMemory
from gpu_mem_calculator.runfile.resolve.resolve_inference import resolve_inference
from gpu_mem_calculator.serving.vllm.engine import serve
from gpu_mem_calculator.tools.read import read

from .vllm_servers import item, run, served

ROWS = Path(__file__).parents[1] / "ground_truth" / "serving_vllm.jsonl"
# Mean and worst of the absolute error over public logs, in percent. Worst: a tower of Gemma 3's
# with tables eight times as long (weights), the first of four stages (activation), libraries of two
# Granite models (non-torch), 0.10.2 that captured whole steps of a hybrid (graphs).
BUDGETS = {
    "weights_bytes": (0.4, 5),
    "activation_bytes": (1.2, 17),
    "non_torch_bytes": (5, 47),
    "graph_bytes": (10, 58),
    "kv_pool_bytes": (0.4, 4),
    "kv_tokens": (0.4, 4),
}


def test_public_logs() -> None:
    """Weights, activations, pools and tokens agree with logs of 52 start-ups, 0.6.6 to 0.19.0."""
    errors: dict[str, list[float]] = {}
    for line in ROWS.read_text().splitlines():
        row = json.loads(line)
        resolved = resolve_inference(read(row["config"]).file)
        stage = row["rank"] if resolved.run.mesh.pp > 1 else 0
        result = serving_result(serve(replace(resolved.run, stage=stage)))
        for key, value in row["measured"].items():
            errors.setdefault(key, []).append(100 * abs(getattr(result, key) - value) / value)
    assert errors.keys() == BUDGETS.keys()
    for key, (mean, worst) in BUDGETS.items():
        assert sum(errors[key]) / len(errors[key]) < mean, key
        assert max(errors[key]) < worst, key


def test_eager_has_no_graphs_and_named_activations() -> None:
    """With enforce_eager nothing is captured, and layers keep more tensors alive."""
    eager = served("llama2-7b", engine_version="0.19.0", enforce_eager=True)
    compiled = served("llama2-7b", engine_version="0.19.0")
    assert eager.figure(GRAPHS) == 0
    assert eager.figure(ACTIVATION) - compiled.figure(ACTIVATION) == 8192 * 4096 * 2 - 50 * MIB


def test_graphs_are_taken_off_from_020() -> None:
    """Until 0.19 graphs are on top of the share, from 0.20 on part of it."""
    for version, part in (("0.19.0", 0), ("0.20.0", 1)):
        memory = served(
            "llama4-scout",
            tensor_parallel_size=8,
            engine_version=version,
            gpu_memory_utilization=0.9,
        )
        share = -(-9 * run().card_bytes // 10)
        deducted = sum(memory.figure(name) for name in (WEIGHTS, ACTIVATION, NON_TORCH))
        assert abs(share - deducted - part * memory.figure(GRAPHS) - memory.pool_bytes) <= 1


def test_sums_are_fused_on_hopper_from_017() -> None:
    """FlashInfer has three workspaces of 512 MiB, on Hopper without a pipeline."""

    def workspaces(gpu: str, version: str, tp: int, pp: int = 1) -> int:
        memory = served(
            gpu=gpu, engine_version=version, tensor_parallel_size=tp, pipeline_parallel_size=pp
        )
        return item(memory, "workspaces of fused sums")

    assert workspaces("h100-80gb-sxm", "0.19.0", 2) == 1536 * MIB
    assert workspaces("h100-80gb-sxm", "0.16.0", 2) == 0
    assert workspaces("a100-80gb-sxm", "0.19.0", 2) == 0
    assert workspaces("h100-80gb-sxm", "0.19.0", 2, 2) == 0


def test_too_little_is_free_to_start() -> None:
    """vLLM does not start if less than its share is free; the sentence names one that fits."""
    memory = served(free=60, engine_version="0.11.0")
    assert "--gpu-memory-utilization 0.9 requests 71.3" in memory.problem
    assert memory.problem.endswith("Use 0.73.")
    assert served(free=60, engine_version="0.11.0", gpu_memory_utilization=0.73).problem == ""


def test_no_share_is_advised_that_does_not_hold_the_server() -> None:
    """Of 7.34 GiB free on an H200 (vllm-project/vllm#23192) none does: the card has to be freed."""
    memory = served("qwen3-32b", gpu="h200", free=7.34, engine_version="0.11.0")
    assert "No share holds the" in memory.problem
    assert memory.problem.endswith("End what else runs on the card.")
    alone = served("qwen3-32b", gpu="rtx-4090", free=7.34, engine_version="0.11.0")
    assert alone.problem.endswith("Use a GPU with more memory.")


def test_a_context_that_the_pool_cannot_hold() -> None:
    """Qwen3-32B on one H100: 16,000 tokens fit, 32,000 do not, and the longest is named."""
    fits = served("qwen3-32b", engine_version="0.11.0", max_seq_len=16000)
    fails = served("qwen3-32b", engine_version="0.11.0", max_seq_len=32000)
    assert fits.problem == ""
    assert "--max-model-len 18272 or less" in fails.problem
    assert served("qwen3-32b", engine_version="0.11.0", max_seq_len=18272).problem == ""


def test_graphs_that_find_no_room() -> None:
    """Before 0.20 a share near 1 leaves no memory for graphs, which follow the cache."""
    memory = served(engine_version="0.11.0", gpu_memory_utilization=0.99)
    assert "CUDA graphs, captured after the KV cache is allocated" in memory.problem


def test_a_pool_that_was_given() -> None:
    """kv_cache_memory_bytes is the pool for any share."""
    memory = served(engine_version="0.11.0", kv_cache_memory_bytes=8 * GIB)
    assert (memory.pool_bytes, memory.tokens) == (8 * GIB, 65536)


def test_the_stage_with_the_least_room_decides() -> None:
    """All four stages hold as many tokens as the last, which samples."""
    server_run = run(pipeline_parallel_size=4, engine_version="0.19.0", gpu_memory_utilization=0.95)
    stages = [serve(replace(server_run, stage=stage)) for stage in range(4)]
    assert len({one.tokens for one in stages}) == 1
    assert min(stages, key=lambda one: one.pool_bytes) is stages[3]
    assert stages[1].pool_bytes > stages[0].pool_bytes  # an embedding less


def test_what_every_stage_of_qwen2_had() -> None:
    """The embedding until 0.6.1, the head until 0.6.4; a log of 0.6.1 shows both on stage 0."""
    table = 152064 * 5120 * 2 // 4  # of the vocabulary, on one of four ranks

    def copies(version: str) -> list[int]:
        server = run(
            "qwen2.5-32b", engine_version=version, tensor_parallel_size=4, pipeline_parallel_size=2
        )
        stages = [serve(replace(server, stage=stage)) for stage in range(2)]
        names = "embedding", "output head"
        return [
            sum(item(one, name) for name in names if item(one, name)) // table for one in stages
        ]

    assert copies("0.6.1") == [2, 2]
    assert copies("0.6.4") == [2, 1]
    assert copies("0.6.5") == [1, 1]


def test_experts_are_spread_or_cut() -> None:
    """Replicas share experts: whole ones, or slices of all; routers are on every rank."""

    def experts(**more: Any) -> int:
        memory = served(
            "qwen3-30b-a3b",
            engine_version="0.11.0",
            data_parallel_size=2,
            tensor_parallel_size=2,
            **more,
        )
        return item(memory, "experts")

    assert experts() == experts(expert_parallel_size=4)
    alone = served("qwen3-30b-a3b", engine_version="0.11.0")
    routers = 48 * 128 * 2048 * 2
    assert item(alone, "experts") - routers == 4 * (experts() - routers)


def test_the_experts_workspace_stays_from_014() -> None:
    """It is alive during sampling: 8 rows of 2,048 and 2,048 for each of 8,192 tokens."""
    memory = served("qwen3-30b-a3b", engine_version="0.19.0")
    assert item(memory, "workspace of the experts") == 8192 * 8 * 4096 * 2
    assert item(served("qwen3-30b-a3b", engine_version="0.11.0"), "workspace of the experts") == 0


def test_the_least_card() -> None:
    """A card of needs_bytes serves one sequence of max_seq_len; one with 16 MiB less does not."""
    server_run = run(
        "qwen3-32b",
        engine_version="0.11.0",
        max_seq_len=16000,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
    )
    needs = serve(server_run).needs_bytes
    for card, starts in ((needs, True), (needs - 16 * MIB, False)):
        memory = serve(replace(server_run, card_bytes=card, free_bytes=card))
        assert (memory.problem == "") is starts


def test_every_item_has_a_figure_and_a_source() -> None:
    """The items sum to the share, and each names its source."""
    memory = served("deepseek-v2-lite", engine_version="0.11.0", max_seq_len=8192)
    share = -(-9 * run().card_bytes // 10)
    figures = (WEIGHTS, ACTIVATION, NON_TORCH, POOL)
    assert abs(sum(memory.figure(name) for name in figures) - share) <= 1
    assert all(one.source.text for one in memory.items)


def test_full_estimate_shows_a_server() -> None:
    """The verdict of the full estimate is the engine's."""
    fits = full_estimate(
        {
            "model": {"name": "llama3.1-8b"},
            "inference": {"engine": "vllm"},
            "hardware": {"gpu": "h100-80gb-sxm"},
        }
    )
    assert fits.result.fits_on_gpu
    assert fits.served[0].tokens > 400_000


def test_segments_are_deducted_until_0_6_3() -> None:
    """Logs of Qwen2.5-32B on 2 x 4 cards: 129,061 blocks with 0.6.1, where 0.6.4 has more room."""
    name = "segments beyond the tensors"

    def stage(version: str, number: int = 1) -> ServerMemory:
        server = run(
            "qwen2.5-32b",
            gpu="a800-80gb-sxm",
            engine_version=version,
            tensor_parallel_size=4,
            pipeline_parallel_size=2,
            max_seq_len=15000,
            gpu_memory_utilization=0.95,
        )
        return serve(replace(server, stage=number))

    assert abs(stage("0.6.1").tokens / (129_061 * 16) - 1) < 0.011  # cards of 79.35 GiB
    assert 400 * MIB < item(stage("0.6.3"), name) < 900 * MIB
    assert item(stage("0.6.4"), name) == 0


def test_the_sampler_worked_in_16_bits_until_0_5_4() -> None:
    """A sort of 2 bytes and 8 of places a logit, and no copy in fp32."""
    logits = 256 * 128256
    old, new = (served(engine_version=version) for version in ("0.5.4", "0.5.5"))
    assert item(old, "logits in fp32") == 0
    assert item(new, "logits in fp32") == 4 * logits
    assert item(old, "logits sorted, with their places") == 10 * logits


def test_consumer_blackwell_runs_mxfp4_with_marlin() -> None:
    """A log of 0.13.0 on a GB10: 13.7193 GiB of gpt-oss-20b, as on an A100, and a small card."""

    def of(gpu: str) -> ServerMemory:
        return served("gpt-oss-20b", gpu, engine_version="0.13.0", quantization="mxfp4")

    def weights(memory: ServerMemory) -> int:
        return sum(one.bytes for one in memory.items if one.figure == WEIGHTS)

    spark, large = of("dgx-spark-128gb"), of("b200-180gb-sxm")
    assert abs(weights(spark) - 13.7193 * GIB) < 2 * MIB
    assert weights(spark) == weights(of("a100-80gb-sxm")) == weights(of("rtx-5090"))
    assert weights(large) > weights(spark)
    assert (spark.most_sequences, large.most_sequences) == (256, 1024)


def test_cards_with_pcie_have_no_nvlink() -> None:
    """Two ranks on A100s with PCIe deduct less for NCCL, as a log without peer access shows."""

    def outside(gpu: str) -> int:
        memory = served(gpu=gpu, engine_version="0.10.1", tensor_parallel_size=2)
        return sum(one.bytes for one in memory.items if one.figure == NON_TORCH)

    assert outside("a100-80gb-pcie") == outside("a100-40gb-pcie") < 0.4 * GIB
    assert outside("a100-80gb-sxm") > 0.8 * GIB
