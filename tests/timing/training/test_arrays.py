"""Arrays of sizes give what single runs give, bit for bit, and quickly."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.timing.training.step import step_seconds
from gpu_mem_calculator.timing.training.step_seconds import PARTS, StepSeconds
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA, small_run

FIELDS = ("estimate", "low", "high", *PARTS)
MIXTRAL = {**SMALL_LLAMA, "model_type": "mixtral", "num_local_experts": 8}
SEQUENCE = {"tensor_parallel_size": 2, "sequence_parallel": True}
MEGATRON: dict[str, dict[str, Any]] = {
    "dense": small_run("megatron_lm", parallelism=SEQUENCE),
    "local": small_run(
        "megatron_lm",
        training={"activation_checkpointing": "full"},
        parallelism={"tensor_parallel_size": 2},
        engine={"transformer_implementation": "local", "distributed_optimizer": True},
    ),
    "experts": small_run(
        "megatron_lm",
        model={"config": MIXTRAL},
        parallelism={**SEQUENCE, "expert_parallel_size": 2},
        engine={"moe_token_dispatcher_type": "alltoall", "distributed_optimizer": True},
    ),
    "overlapped": small_run(
        "megatron_lm",
        parallelism=SEQUENCE,
        training={"activation_checkpointing": "selective"},
        engine={
            "distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
            "tp_comm_overlap": True,
        },
    ),
}
OTHERS: dict[str, dict[str, Any]] = {
    "ddp": small_run("pytorch_ddp"),
    "fsdp": small_run("fsdp", training={"activation_checkpointing": "full"}),
    "fsdp-hybrid": small_run("fsdp", engine={"sharding_strategy": "hybrid_shard"}),
    "fsdp-keep": small_run("fsdp", engine={"sharding_strategy": "shard_grad_op"}),
    "zero1": small_run("deepspeed", engine={"zero_stage": 1}),
    "zero2": small_run("deepspeed", engine={"zero_stage": 2, "offload_optimizer": "cpu"}),
    "zero3": small_run("deepspeed", engine={"zero_stage": 3}),
}
Sizes = dict[str, Any]


def resolved(files: dict[str, dict[str, Any]], name: str) -> ResolvedRun:
    """One of the runs, with every choice made."""
    return resolve(read(files[name]).file)


def with_sizes(run: Run, sizes: Sizes) -> Run:
    """The run with other sizes of its mesh, batch, micro-batches and chunks."""
    axes = {key: sizes[key] for key in ("dp", "tp", "pp", "cp", "ep") if key in sizes}
    others = {key: value for key, value in sizes.items() if key not in axes}
    return replace(run, mesh=replace(run.mesh, **axes), **others)


def open_grid(sizes: dict[str, list[int]]) -> Sizes:
    """Arrays that broadcast to the grid of all values."""
    return dict(zip(sizes, np.ix_(*sizes.values()), strict=True))


def assert_equal(found: ResolvedRun, sizes: dict[str, list[int]]) -> None:
    """Every point of the grid equals its single run."""
    machine, engine = machine_of(found.hardware), found.engine.name
    many = step_seconds(with_sizes(found.run, open_grid(sizes)), engine, machine)
    shape = tuple(len(values) for values in sizes.values())
    for index in np.ndindex(shape):
        point = {key: values[i] for (key, values), i in zip(sizes.items(), index, strict=True)}
        one = step_seconds(with_sizes(found.run, point), engine, machine)
        for field in FIELDS:
            several = np.broadcast_to(getattr(many, field), shape)[index]
            assert float(several) == float(getattr(one, field)), (field, point)


def some(*values: int) -> st.SearchStrategy[list[int]]:
    """One or two of the values."""
    return st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)


@pytest.mark.parametrize("name", sorted(MEGATRON))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tp=some(1, 2, 4, 8),
    pp=some(1, 2, 4),
    cp=some(1, 2, 4),
    ep=some(1, 2, 8),
    dp=some(1, 4, 8, 96),
    batch=some(1, 2, 3, 8),
    micro_batches=some(1, 4, 7, 64),
    virtual_stages=some(1, 2),
)
def test_megatron(name: str, **sizes: list[int]) -> None:
    """Megatron's arrays equal its single runs."""
    if name != "experts":
        del sizes["ep"]
    if name == "local":
        del sizes["cp"]
    assert_equal(resolved(MEGATRON, name), sizes)


@pytest.mark.parametrize("name", sorted(OTHERS))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dp=some(1, 4, 8, 96), batch=some(1, 2, 3, 8), micro_batches=some(1, 4, 7, 64))
def test_others(name: str, **sizes: list[int]) -> None:
    """The arrays of engines that only have data parallelism equal their single runs."""
    assert_equal(resolved(OTHERS, name), sizes)


def large_grid() -> tuple[ResolvedRun, Sizes]:
    """Llama-3.1-405B on 16,384 GPUs: about a million set-ups."""
    file = small_run("megatron_lm", 576, model={"name": "llama3.1-405b"})
    file["model"].pop("config")
    file["training"] = {"batch_size": 1, "seq_len": 8192}
    file["parallelism"] = {**SEQUENCE, "pipeline_parallel_size": 9}
    file["engine"]["distributed_optimizer"] = True
    values = {
        "tp": [1, 2, 4, 8],
        "pp": [1, 2, 3, 6, 7, 9, 14, 18, 21, 42],
        "cp": [1, 2, 4, 8, 16],
        "batch": list(range(1, 251)),
        "virtual_stages": [1, 2, 3, 6, 7, 9, 14, 18, 21, 42, 63, 126, 4, 5, 8, 10, 12, 15, 16, 20],
    }
    sizes = open_grid(values)
    ranks = sizes["tp"] * sizes["pp"] * sizes["cp"]
    sizes["dp"] = np.maximum(16384 // ranks, 1)
    sizes["micro_batches"] = np.maximum(2048 // (sizes["dp"] * sizes["batch"]), 1)
    return resolve(read(file).file), sizes


def timed(found: ResolvedRun, sizes: Sizes) -> tuple[float, StepSeconds]:
    """Seconds of the processor for a grid, and its result."""
    machine = machine_of(found.hardware)
    begin = time.process_time()
    result = step_seconds(with_sizes(found.run, sizes), found.engine.name, machine)
    return time.process_time() - begin, result


def test_a_million_set_ups_take_less_than_half_a_second() -> None:
    """Curves are looked up on small arrays; only the last sums run over the whole grid."""
    found, sizes = large_grid()
    tries = [timed(found, sizes) for _ in range(3)]
    assert tries[0][1].estimate.size == 1_000_000
    assert min(seconds for seconds, _ in tries) < 0.5
