"""What the rungs say of a measured run."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.node import STEADY
from gpu_mem_calculator.estimates.stage_replay import replay_stage
from gpu_mem_calculator.lab.backtest.phases import replayed_peaks
from gpu_mem_calculator.lab.backtest.predict import (
    Prediction,
    by_estimate,
    by_trace,
    check_rung,
    outside_bytes,
    stage_of_rank,
)
from gpu_mem_calculator.lab.backtest.rows import METRICS, MeasuredRun, rows_from
from gpu_mem_calculator.ledger.ledger import CPU
from gpu_mem_calculator.pytorch.replay.footprint import ReplayPhase
from gpu_mem_calculator.run.cuda.libraries import NCCL_BYTES, host_libraries
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import measured_runs, small_run

from .conftest import measured_row

OUTSIDE = (("CUDA context", 5, ""), ("NCCL", 7, ""))


SEARCHED = {"allocated_bytes": 10**9, "survives_in_bytes": 10**9, "fits": True}


def one(**rest: Any) -> MeasuredRun:
    """A measured run with some keys changed."""
    return rows_from([measured_row(**rest)])[0]


def test_a_prediction_has_a_field_for_every_metric() -> None:
    """Every metric is a field of the prediction."""
    assert set(Prediction.__struct_fields__) == {*METRICS, "phases"}


@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (3, 0), (4, 1), (15, 3)])
def test_stages_are_the_outermost_axis(rank: int, stage: int) -> None:
    """Sixteen ranks in four stages: four neighbours share a stage."""
    assert stage_of_rank(rank, 16, 4) == stage


def test_a_rank_that_the_run_does_not_have_is_refused() -> None:
    """With the ranks that it has."""
    with pytest.raises(InputError, match="rank=8 is not one of the run's 8 ranks; use 0 to 7"):
        stage_of_rank(8, 8, 2)


@pytest.mark.parametrize(
    ("group", "total"),
    [("none", 5), ("fake", 5), ("nccl, 1 rank", 5 + NCCL_BYTES), ("nccl", 12), (None, 12)],
)
def test_nccl_counts_where_the_measured_process_had_it(group: str | None, total: int) -> None:
    """Fake process groups have no NCCL; one rank has one communicator; a real job has its own."""
    assert outside_bytes(OUTSIDE, group) == total


def test_the_estimate_is_of_the_stage_that_was_measured() -> None:
    """Rank 0 and the last rank of a pipeline get the replays of their own stages."""
    mesh = {"pipeline_parallel_size": 4, "data_parallel_size": 2}
    config = small_run("megatron_lm", parallelism=mesh, training={"gradient_accumulation_steps": 8})
    found = full_estimate(config, replay=False)
    first, last = (replay_stage(found.resolved, n, found.ledgers[n]) for n in (0, 3))
    assert first is not None
    assert last is not None
    assert first.allocated_bytes != last.allocated_bytes
    for rank, stage in ((0, first), (7, last)):
        predicted = by_estimate(one(config=config, rank=rank, measured=SEARCHED))
        assert predicted.allocated == stage.allocated_bytes
        assert (predicted.reserved, predicted.needs) == (stage.reserved_bytes, stage.needs_bytes)


def test_the_numbers_and_the_verdict_are_the_estimates_own() -> None:
    """The same figures that `calculate` shows."""
    result = full_estimate(small_run(gpus=1)).result
    found = by_estimate(one(measured=SEARCHED))
    assert (found.allocated, found.startup) == (result.allocated_bytes, result.startup_bytes)
    assert (found.reserved, found.needs) == (result.reserved_bytes, result.needs_bytes)
    steps = next(one for one in result.phases if one.name == STEADY)  # saving is not measured
    assert (found.device, found.host) == (result.device_bytes, steps.host_bytes)
    assert found.fits is True


def test_a_verdict_counts_what_the_allocator_needs() -> None:
    """A card that has all that is allocated, but not what torch needs, is too small."""
    result = full_estimate(small_run(gpus=1)).result
    assert result.needs_bytes is not None
    between = (result.allocated_bytes + result.needs_bytes) // 2 + result.outside_torch_bytes
    config = small_run(gpus=1, hardware={"gpu_memory_bytes": between})
    assert by_estimate(one(config=config, measured=SEARCHED)).fits is False


def test_the_least_memory_is_looked_for_only_where_it_was_measured() -> None:
    """The search takes longer than all the rest."""
    found = by_estimate(one())
    assert (found.needs, found.fits) == (None, None)
    assert found.reserved is not None


@pytest.mark.parametrize(
    ("group", "nccl"),
    [("none", False), ("fake", False), ("nccl, 1 rank", True), ("nccl", True), (None, True)],
)
def test_host_memory_counts_libraries(group: str | None, nccl: bool) -> None:
    """What is offloaded and the libraries of the process, NCCL's where it was there."""
    config = small_run("deepspeed", engine={"zero_stage": 2, "offload_optimizer": "cpu"})
    made = full_estimate(config, replay=False)
    _, libraries, _ = host_libraries(made.resolved.run, made.resolved.engine, nccl=nccl)
    held = int(made.ledger.peak(CPU))
    assert held > 0
    around = {"environment": {"process_group": group}} if group else {}
    assert by_estimate(one(config=config, **around)).host == held + libraries


def test_the_allocators_settings_of_the_measurement_count() -> None:
    """A run that was measured with PYTORCH_ALLOC_CONF is estimated with it."""
    around = {"process_group": "none", "alloc_conf": "expandable_segments:True"}
    found = by_estimate(one(environment=around, measured=SEARCHED))
    config = small_run(gpus=1, training={"pytorch_alloc_conf": "expandable_segments:True"})
    result = full_estimate(config).result
    assert (found.reserved, found.needs) == (result.reserved_bytes, result.needs_bytes)
    assert found.reserved != by_estimate(one()).reserved


def test_phases_of_a_measured_run_come_out_right() -> None:
    """First and later steps, forward, backward and optimizer of a run on one GPU: within 0.5 %."""
    row = next(r for r in measured_runs() if r["id"] == "accum4-llama3.2-1b")
    (read,) = rows_from([row])
    found = by_estimate(read).phases
    assert found.keys() == read.phases.keys()
    assert found["s0.a0.bwd"] < found["s1.a0.bwd"] < found["s1.a1.bwd"]
    assert all(abs(found[n] / peak - 1) < 0.005 for n, peak in read.phases.items())


@pytest.mark.parametrize("name", ["mg-llama8b-tp2-pp4-dp8", "ds-z2-llama3.2-1b-w8-accum4"])
def test_phases_of_other_engines_come_out_right(name: str) -> None:
    """Pipelines have forward and backward in one phase; DeepSpeed steps on the last micro-batch."""
    (read,) = rows_from([r for r in measured_runs() if r["id"] == name])
    found = by_estimate(read).phases
    steps = {n: peak for n, peak in read.phases.items() if n[:2] in ("s1", "s2") and n in found}
    assert {n.rpartition(".")[2] for n in steps} >= {"opt"}
    assert "s1.a0.opt" not in steps
    assert "s1.sync" not in steps
    assert all(abs(found[n] / peak - 1) < 0.005 for n, peak in steps.items())


def fake_trace(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    """Put a trace in the place of the real one."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    module = ModuleType("gpu_mem_calculator.lab.trace.run")
    monkeypatch.setattr(module, "trace", function, raising=False)
    monkeypatch.setitem(sys.modules, "gpu_mem_calculator.lab.trace", ModuleType("trace"))
    monkeypatch.setitem(sys.modules, "gpu_mem_calculator.lab.trace.run", module)


def test_a_trace_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures, and for steps beyond the traced ones those of the last."""
    phases = {n: SimpleNamespace(peak_bytes=b) for n, b in (("model", 1), ("s1.opt", 9))}
    resolved = full_estimate(small_run(gpus=1)).resolved
    found = SimpleNamespace(
        allocated_bytes=9,
        startup_bytes=1,
        reserved_bytes=20,
        needs_bytes=12,
        phases=phases,
        resolved=resolved,
    )
    fake_trace(monkeypatch, lambda config, rank: found)
    measured = {n: {"peak_bytes": 1} for n in ("model", "s0.opt", "s2.opt", "s2.sync")}
    said = by_trace(one(phases=measured, environment={"process_group": "none"}))
    assert (said.allocated, said.startup, said.reserved, said.needs) == (9, 1, 20, 12)
    assert said.device is not None
    assert said.device > 20
    assert said.phases == {"model": 1, "s2.opt": 9}


def test_a_trace_that_dies_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal has the first line of the error."""

    def dies(config: Any, rank: int) -> None:
        raise RuntimeError("shapes differ\nlong story")

    fake_trace(monkeypatch, dies)
    with pytest.raises(InputError, match=r"the traced run failed, RuntimeError: shapes differ$"):
        by_trace(one())


def test_without_torch_the_trace_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, before any row."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r'pip install -e "\.\[torch\]"'):
        check_rung("trace")


def test_only_phases_that_were_measured_and_replayed_have_a_peak() -> None:
    """A replay without a prefill, a measurement without a load."""
    phases = {"load": ReplayPhase(5, 0, 9), "generate": ReplayPhase(7, 0, 9)}
    assert replayed_peaks(phases, ("prefill", "generate"), 1) == {"generate": 7}
