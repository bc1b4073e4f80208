"""What must hold for every engine, whatever the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import STEP, full_estimate
from gpu_mem_calculator.ledger.ledger import CPU, GPU, NVME, Ledger
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine_names
from tests.conftest import small_run

# Runs that between them reach every engine's ways of keeping things.
RUNS: dict[str, dict[str, Any]] = {
    "ddp": small_run("pytorch_ddp"),
    "ddp-accumulating": small_run("pytorch_ddp", training={"gradient_accumulation_steps": 4}),
    "ddp-full-recompute": small_run("pytorch_ddp", training={"activation_checkpointing": "full"}),
    "ddp-half-recompute": small_run("pytorch_ddp", training={"activation_checkpointing": 2}),
    "ddp-eager-selective": small_run(
        "pytorch_ddp", training={"activation_checkpointing": 1, "attention": "eager"}
    ),
    "zero0": small_run("deepspeed", engine={"zero_stage": 0}),
    "zero1": small_run("deepspeed", engine={"zero_stage": 1}),
    "zero2": small_run("deepspeed", engine={"zero_stage": 2}),
    "zero2-accumulating": small_run(
        "deepspeed", engine={"zero_stage": 2}, training={"gradient_accumulation_steps": 4}
    ),
    "zero3": small_run("deepspeed", engine={"zero_stage": 3}),
    "zero3-offload": small_run(
        "deepspeed", engine={"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"}
    ),
    "fsdp": small_run("fsdp"),
    "fsdp-keep": small_run("fsdp", engine={"sharding_strategy": "shard_grad_op"}),
    "fsdp-hybrid": small_run("fsdp", engine={"sharding_strategy": "hybrid_shard"}),
    "fsdp1": small_run("fsdp", engine={"fsdp_version": 1}),
    "fsdp1-keep": small_run(
        "fsdp",
        engine={
            "fsdp_version": 1,
            "sharding_strategy": "shard_grad_op",
            "use_orig_params": True,
            "init_device": "cuda",
        },
    ),
    "megatron": small_run("megatron_lm", parallelism={"tensor_parallel_size": 2}),
    "megatron-pipeline": small_run(
        "megatron_lm",
        training={"gradient_accumulation_steps": 8, "activation_checkpointing": "selective"},
        parallelism={"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        engine={"distributed_optimizer": True, "transformer_implementation": "local"},
    ),
    "megatron-deepspeed": small_run(
        "megatron_deepspeed", parallelism={"tensor_parallel_size": 2}, engine={"zero_stage": 1}
    ),
}
NAMES = sorted(RUNS)


def resolved(name: str) -> tuple[Run, Any]:
    """A run and the function that makes its ledger."""
    found = resolve(read(RUNS[name]).file)
    return found.run, found.engine.ledger


def peak(name: str, **changes: Any) -> int:
    """The allocated peak of a run with some numbers changed."""
    run, ledger = resolved(name)
    mesh = {k: changes.pop(k) for k in ("dp", "tp", "pp") if k in changes}
    run = replace(run, mesh=replace(run.mesh, **mesh), **changes)
    return int(ledger(run).peak(phases=STEP))


def test_every_engine_is_covered() -> None:
    """Each engine that exists has a run here."""
    assert {run["engine"]["type"] for run in RUNS.values()} == set(engine_names())


@pytest.mark.parametrize("name", NAMES)
def test_arrays_give_what_single_runs_give(name: str) -> None:
    """One ledger over arrays of batch, sequence, ranks and micro-batches is many ledgers."""
    run, ledger = resolved(name)
    batch = np.array([1, 2, 3, 5], dtype=np.int64)
    seq = np.array([512, 384, 128, 640], dtype=np.int64)
    dp = np.array([2, 4, 8, 16], dtype=np.int64)
    micro = np.array([1, 2, 8, 3], dtype=np.int64)
    many: Ledger = ledger(
        replace(run, batch=batch, seq=seq, micro_batches=micro, mesh=replace(run.mesh, dp=dp))
    )
    for place in (GPU, CPU, NVME):
        found = np.broadcast_to(many.peak(place), batch.shape)
        for i in range(len(batch)):
            one = replace(
                run,
                batch=int(batch[i]),
                seq=int(seq[i]),
                micro_batches=int(micro[i]),
                mesh=replace(run.mesh, dp=int(dp[i])),
            )
            assert int(ledger(one).peak(place)) == int(found[i]), (place, i)


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_batch_or_sequence_never_costs_less(name: str) -> None:
    """Memory grows with the micro-batch and with the sequence."""
    assert peak(name, batch=1) <= peak(name, batch=2) <= peak(name, batch=7)
    assert peak(name, seq=128) <= peak(name, seq=256) <= peak(name, seq=1024)


@pytest.mark.parametrize("name", NAMES)
def test_more_data_parallel_ranks_never_cost_more(name: str) -> None:
    """More ranks to share with take nothing more (one rank needs no communication buffers)."""
    peaks = [peak(name, dp=dp) for dp in (2, 4, 8, 64)]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_more_layers_never_cost_less(name: str) -> None:
    """Memory grows with depth."""
    run = RUNS[name]
    totals = []
    for layers in (4, 8, 16):
        config = {**run["model"]["config"], "num_hidden_layers": layers}
        totals.append(full_estimate({**run, "model": {"config": config}}).result.allocated_bytes)
    assert totals == sorted(totals)


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_add_up_to_the_whole(name: str) -> None:
    """Kinds add up to an instant, the documented breakdown to what the card must have."""
    found = full_estimate(RUNS[name])
    for instant in found.ledger.instants:
        assert sum(found.ledger.parts(instant).values()) == found.ledger.at(instant)
    result = found.result
    assert result.breakdown.total_memory_gb == pytest.approx(result.total_memory_per_gpu_gb)
    assert result.allocated_bytes == max(stage.allocated_bytes for stage in result.stages)


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_whole_and_has_a_source(name: str) -> None:
    """No byte is negative, fractional or without a source."""
    for ledger in full_estimate(RUNS[name]).ledgers:
        names = {instant.name for instant in ledger.instants}
        for entry in ledger.entries:
            assert int(entry.bytes) == entry.bytes >= 0, entry.name
            assert entry.source.text, entry.name
            assert set(entry.live) <= names, entry.name
            assert all(copies >= 0 for copies in entry.live.values()), entry.name


@given(
    batch=st.integers(1, 64),
    seq=st.integers(1, 4096),
    micro=st.integers(1, 64),
    name=st.sampled_from(NAMES),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_peak_is_never_below_any_instant(batch: int, seq: int, micro: int, name: str) -> None:
    """The peak is the highest instant, at any size."""
    run, ledger = resolved(name)
    made = ledger(replace(run, batch=batch, seq=seq, micro_batches=micro))
    heights = [int(made.at(i)) for i in made.instants if i.phase in STEP]
    assert max(heights) == int(made.peak(phases=STEP))
    assert min(heights) >= 0
