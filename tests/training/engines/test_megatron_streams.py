"""Megatron's streams of allocations: start-up, the pipeline's schedule, and what was measured."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import STEP
from gpu_mem_calculator.lab.backtest.predict import stage_of_rank
from gpu_mem_calculator.lab.jobs.megatron_defaults import with_measured_defaults
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.pytorch.replay.footprint import Footprint
from gpu_mem_calculator.pytorch.replay.replays import replay
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.megatron_lm.engine import ENGINE
from gpu_mem_calculator.training.engines.megatron_lm.model_inputs import embedding_steps
from gpu_mem_calculator.training.engines.megatron_lm.parameters import (
    stage_tensors,
    stepped_parameters,
)
from gpu_mem_calculator.training.engines.megatron_lm.states import owned, stage_shard
from gpu_mem_calculator.training.engines.megatron_lm.stream import PipelineStreamWriter
from gpu_mem_calculator.training.step.pipeline import pipeline_stage
from gpu_mem_calculator.training.step.stream import allocation_stream
from gpu_mem_calculator.training.step.stream_phases import Phase
from tests.conftest import measured_runs
from tests.properties.test_megatron_stream import highest
from tests.training.engines.test_megatron import EXPERTS, GPT, UNFUSED, arch, run

MIB = 2**20
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 2},
    {"pp": 4, "stage": 3},
    {"dp": 8},
    {"pp": 2, "virtual_stages": 2, "dp": 4, "micro_batches": 4},
)
ROWS = {
    row["id"]: row
    for name in ("runs", "engines", "options")
    for row in measured_runs(name)
    if row["group"] == "megatron"
}


def resolved(row: str) -> tuple[ResolvedRun, int]:
    """A measured run, and the stage it was measured on."""
    case = resolve(read(with_measured_defaults(ROWS[row]["config"], ROWS[row]["environment"])).file)
    pp = int(case.run.mesh.pp)
    return case, stage_of_rank(ROWS[row]["rank"], case.hardware.num_gpus, pp)


@cache
def stream_of(row: str) -> AllocationStream:
    """The stream of a measured run."""
    case, stage = resolved(row)
    ledger = case.engine.ledger(replace(case.run, stage=stage, unrolled=True))
    return allocation_stream(ledger, int(case.run.micro_batches))


@cache
def played(row: str) -> Footprint:
    """The stream of a measured run, replayed through torch's allocator."""
    return replay(stream_of(row), resolved(row)[0].allocator)


@pytest.mark.parametrize("row", ROWS)
def test_a_stream_is_as_high_as_its_ledger(row: str) -> None:
    """The peak of a measured run's stream is the peak of its ledger."""
    case, stage = resolved(row)
    rolled = case.engine.ledger(replace(case.run, stage=stage))
    assert highest(stream_of(row)) == int(rolled.peak(phases=STEP))


@pytest.mark.parametrize("row", ROWS)
def test_start_up_takes_what_was_measured(row: str) -> None:
    """Weights, buffers and main weights: the same segments in all runs, to 2 MiB."""
    phases = ROWS[row]["phases"]
    ours = played(row).phases["startup"]
    assert ours.start_next_bytes == pytest.approx(phases["optimizer"]["start_next_bytes"], abs=MIB)
    most = max(phases[name]["reserved_bytes"] for name in ("model", "ddp", "optimizer"))
    assert abs(ours.reserved_bytes - most) <= 2 * MIB


def test_reserved_memory_is_what_was_measured() -> None:
    """Within half a percent on the mean of all runs, and within 4.5 percent in each."""
    errors = {
        row: 100 * (played(row).reserved_bytes / ROWS[row]["measured"]["reserved_bytes"] - 1)
        for row in ROWS
    }
    assert max(map(abs, errors.values())) <= 4.5, errors
    assert sum(map(abs, errors.values())) / len(errors) <= 0.5, errors


@pytest.mark.parametrize(
    ("flight", "expected"),
    [(1, "F0 B0 F1 B1 F2 B2"), (2, "F0 F1 B0 F2 B1 B2"), (3, "F0 F1 F2 B0 B1 B2")],
)
def test_1f1b(flight: int, expected: str) -> None:
    """Warm-up forwards, one forward and one backward in turn, the backwards that are left."""
    ledger = ENGINE.ledger(run(unrolled=True, options=UNFUSED))
    steps = [Phase("startup", [])]
    for _ in range(2):
        steps += [Phase(f"{word}{n}", []) for n in range(3) for word in "FB"] + [Phase("opt", [])]
    titles = [phase.title for phase in PipelineStreamWriter(ledger, flight).order(steps, 3)]
    assert titles == ["startup", *[*expected.split(), "opt"] * 2]


def test_start_up_runs_when_the_model_is_built() -> None:
    """Its events are the first instant's; the other instants of start-up only hold entries."""
    ledger = ENGINE.ledger(run(unrolled=True, options=UNFUSED))
    startup = [instant.name for instant in ledger.instants if instant.phase == "startup"]
    assert [name for name in ledger.plays if name.startswith("startup")] == startup[:1]
    assert ledger.instants[0].name == startup[0] == "startup.model"


@pytest.mark.parametrize("numbers", [{}, GPT, EXPERTS])
@pytest.mark.parametrize("settings", LAYOUTS)
def test_every_tensor_is_listed(numbers: dict[str, Any], settings: dict[str, Any]) -> None:
    """The parameters one by one add up to the rank's, and so do those that it steps."""
    for split in (False, True):
        case = run(arch(**numbers), options=UNFUSED | {"distributed_optimizer": split}, **settings)
        shard = stage_shard(case, pipeline_stage(case))
        parameters = stage_tensors(case)
        assert sum(t.elements for t in parameters) == shard.total
        assert sum(t.elements for t in parameters if t.expert) == shard.experts
        assert sum(t.elements for t in parameters if t.vector) == shard.vectors
        assert sum(n for _, n in stepped_parameters(case)) == owned(case, shard)


def test_embedding_is_made_in_steps() -> None:
    """Words alone; transposed for two samples; this rank's part of the sequence, and its clone."""
    full = 4096 * 4096 * 2
    assert embedding_steps(run()) == (full,)
    assert embedding_steps(run(batch=2)) == (2 * full, 2 * full)
    parallel = run(tp=4, sequence_parallel=True)
    assert embedding_steps(parallel) == (full, full // 4, full // 4)


def test_biases_of_experts_are_parameters_too() -> None:
    """gpt-oss: every expert has two, and the stream allocates their states."""
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "head_dim": 32,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    }
    case = run(read_config(config), options=UNFUSED)
    shard = stage_shard(case, pipeline_stage(case))
    assert sum(t.elements for t in stage_tensors(case) if t.expert) == shard.experts
