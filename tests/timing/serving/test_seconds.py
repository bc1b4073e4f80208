"""Estimated seconds of servers: their parts, and how they grow."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator.estimates.serving.speed import find_card_rates, timed_replica
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.serving import server_names
from gpu_mem_calculator.timing.serving.kernels import reduction_seconds
from gpu_mem_calculator.timing.serving.measured import AMD_SHARE, COSTS, V0
from gpu_mem_calculator.timing.serving.roofline import first_token_time, step_rates
from gpu_mem_calculator.timing.serving.seconds import (
    ATTENTION,
    COMMUNICATION,
    HOST,
    MATRICES,
    TimedReplica,
    first_token_seconds,
    prompt_seconds,
    step_seconds,
)
from gpu_mem_calculator.tools.read import read


@cache
def timed(
    model: str = "llama3-8b", gpu: str = "h100-80gb-sxm", gpus: int = 0, **keys: Any
) -> TimedReplica:
    """A replica, on as many GPUs as its tensor and pipeline sizes need."""
    gpus = gpus or keys.get("tensor_parallel_size", 1) * keys.get("pipeline_parallel_size", 1)
    hardware = {"gpu": gpu, "num_gpus": gpus}
    inference = {"engine": "vllm", **keys}
    file = read({"model": {"name": model}, "inference": inference, "hardware": hardware}).file
    resolved = resolve(file)
    card = find_card_rates(GPUConfig(**hardware), int(resolved.run.mesh.tp))
    assert card is not None
    return timed_replica(resolved, file.hardware, card)


def test_a_step_is_the_sum_of_its_parts_within_its_interval() -> None:
    """And an H100 takes 7.3 ms for a token of an 8B model with vLLM 0.11 (gpustack's page)."""
    found = step_seconds(timed(), 340, 1)
    assert sum(found.parts.values()) == pytest.approx(found.estimate)
    assert found.low < found.estimate < found.high
    assert found.estimate == pytest.approx(0.0073, rel=0.15)
    assert found.parts[MATRICES] > 0.8 * found.estimate
    assert found.parts[COMMUNICATION] == 0


@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "h100-80gb-sxm", "b200-180gb-sxm", "rtx-4090"])
@pytest.mark.parametrize("users", [1, 16, 128])
def test_the_estimate_is_slower_than_the_bound(gpu: str, users: int) -> None:
    """By roofline, of a step and of a prompt."""
    one = timed(gpu=gpu)
    _, each, _ = step_rates(one.replica, 2048, users)
    assert step_seconds(one, 2048, users).estimate > 1 / each
    bound = first_token_time(one.replica.alone, 2048, one.chunk)
    assert first_token_seconds(one, 2048).estimate > bound.seconds


def test_more_users_and_longer_contexts_take_longer() -> None:
    """A step and its attention."""
    one = timed()
    steps = [step_seconds(one, 4096, users).estimate for users in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert steps == sorted(steps)
    short, long = (step_seconds(one, context, 64) for context in (1024, 8192))
    assert long.parts[ATTENTION] > 4 * short.parts[ATTENTION]
    assert long.parts[MATRICES] == short.parts[MATRICES]


def test_tensor_parallelism_divides_products_and_adds_communication() -> None:
    """Of a 70B model: less than half the seconds on four times the GPUs."""
    two, eight = (timed("llama3-70b", tensor_parallel_size=tp) for tp in (2, 8))
    slow, fast = (step_seconds(one, 2048, 1) for one in (two, eight))
    assert fast.parts[MATRICES] < 0.5 * slow.parts[MATRICES]
    assert fast.parts[COMMUNICATION] > slow.parts[COMMUNICATION] > 0


def test_small_reductions_take_one_kernel_and_large_ones_follow_nccl() -> None:
    """8 KiB over 8 H100: 5.3 us; 512 MB take as long as the bytes need."""
    one = timed("llama3-70b", tensor_parallel_size=8)
    stage = one.replica.stages[0]
    small = reduction_seconds(stage, 0.5, one.gpu) / stage.sums
    assert small == pytest.approx(5.3e-6, rel=0.02)
    large = reduction_seconds(stage, 32768, one.gpu) / stage.sums
    assert 32768 * stage.hidden_bytes / large > 2e11


def test_a_pipeline_keeps_its_stages_busy() -> None:
    """Prompts of many pass in the time of the slowest stage; a step passes all of them."""
    one, four = timed(), timed(pipeline_parallel_size=4)
    host = COSTS["vllm"].request + COSTS["vllm"].step
    each = [prompt_seconds(replica, 4096).estimate - host for replica in (one, four)]
    assert each[1] < 0.35 * each[0]
    assert step_seconds(four, 1024, 1).estimate > 0.9 * step_seconds(one, 1024, 1).estimate


def test_experts_take_longer_with_more_tokens_until_all_are_read() -> None:
    """Mixtral has eight experts and routes each token to two."""
    one = timed("mixtral-8x7b", gpu="h200-141gb-sxm")
    few, many = (step_seconds(one, 512, users).parts[MATRICES] for users in (1, 16))
    assert 2 < many / few < 4.5


def test_replicas_that_share_experts_send_tokens_to_them() -> None:
    """Over the network, which is slower than NVLink, if they are on several nodes."""
    model = "qwen3-30b-a3b"
    eight = timed(model, gpus=8, data_parallel_size=8, expert_parallel_size=8)
    sixteen = timed(model, gpus=16, data_parallel_size=16, expert_parallel_size=16)
    alone = timed(model)
    sent = [step_seconds(one, 512, 64).parts[COMMUNICATION] for one in (alone, eight, sixteen)]
    assert sent[0] == 0 < sent[1] < sent[2]


def test_every_engine_has_costs_and_the_host_limits_transformers() -> None:
    """A layer of transformers takes the host 0.6 ms, more than the GPU."""
    assert set(COSTS) == {*server_names(), V0}
    slow = step_seconds(timed(engine="transformers"), 512, 1)
    assert slow.estimate == pytest.approx(32 * COSTS["transformers"].layer)
    assert slow.parts[HOST] > 0.5 * slow.estimate


def test_an_older_vllm_has_the_costs_of_its_engine() -> None:
    """0.7 runs the V0 engine."""
    assert timed(engine_version="0.7.0").costs == COSTS[V0]
    assert timed().costs == COSTS["vllm"]


def test_cards_of_amd_take_the_scaled_curves_at_a_share() -> None:
    """MI300X."""
    assert timed(gpu="mi300x").share == AMD_SHARE
    assert timed().share == 1
