"""The rungs: functions that predict a measured run, memory and step, by estimate or by trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...estimates.calculator import STEP, Estimate, full_estimate
from ...estimates.drawn import settled
from ...estimates.fit_verdict import FITS, replay_verdict
from ...estimates.machine import machine_of
from ...estimates.server_result import serving_result
from ...estimates.stage_replay import replay_stage
from ...ledger.extras import install
from ...ledger.ledger import CPU, UNIFIED
from ...run.cuda.libraries import NCCL_BYTES, host_libraries
from ...run.phases import STARTUP
from ...runfile.resolve.resolve import resolve
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...runfile.text.text_data import load_record
from ...timing.training.alone import alone_seconds
from ...timing.training.step import step_seconds
from ...tools.read import read
from ..jobs.phases import parse
from .life import HOST, MARK, RESET, is_life, life_estimate, life_peaks
from .phases import phase_peaks, replayed_peaks
from .rows import METRICS, MeasuredRun

WRITE_NOTHING = ("transformers.", "trl.")  # programs that write no checkpoint
ALONE = ("none", "fake", "nccl, 1 rank")  # process groups in which nobody waits for another rank


NEEDS_TORCH = "--rung trace runs the model with torch, and {} is not installed; " + install("torch")


def predict_step(resolved: ResolvedRun, process_group: str | None, stage: int) -> float:
    """Seconds of a step; without communication where the process group moved nothing."""
    run, engine = resolved.run, resolved.engine.name
    machine = machine_of(resolved.hardware)
    if process_group in ALONE:
        return float(alone_seconds(run, engine, machine, stage))
    return float(step_seconds(run, engine, machine).estimate)


class Prediction(Struct, frozen=True, kw_only=True):
    """The prediction of a rung for one run; None where the rung does not predict a metric.

    The fields are the metrics of `rows.METRICS`: bytes, except kv_tokens, fits (a verdict) and step
    (seconds).
    `phases` has the peak of each measured phase in bytes.
    """

    allocated: int | None = None
    startup: int | None = None
    reserved: int | None = None
    needs: int | None = None
    device: int | None = None
    host: int | None = None
    weights: int | None = None
    activation: int | None = None
    non_torch: int | None = None
    graph: int | None = None
    kv_pool: int | None = None
    kv_tokens: int | None = None
    fits: bool | None = None
    step: float | None = None
    phases: dict[str, int] = {}


SEARCH_METRICS = {"survives_in_bytes", "fits"}  # they take a search for the least memory
Rung = Callable[[MeasuredRun], Prediction]


def stage_of_rank(rank: int, ranks: int, stages: int) -> int:
    """The pipeline stage of a rank: stages are the outermost axis of the rank order.

    megatron-core 0.19.2 parallel_state.py, order tp-cp-ep-dp-pp; deepspeed 0.19.8
    runtime/pipe/topology.py, axes pipe, data, model.
    """
    if rank >= ranks:
        raise InputError(f"rank={rank} is not one of the run's {ranks} ranks; use 0 to {ranks - 1}")
    return rank // (ranks // stages)


def outside_bytes(outside: Iterable[tuple[str, int, str]], process_group: str | None) -> int:
    """Bytes outside torch in a measured process.

    A fake process group, or none, has no NCCL; `nccl, 1 rank` has one communicator of one rank.
    """
    rows = list(outside)
    if process_group in (None, "nccl"):
        return sum(size for _, size, _ in rows)
    rest = sum(size for name, size, _ in rows if not name.startswith("NCCL"))
    return rest + (NCCL_BYTES if process_group == "nccl, 1 rank" else 0)


def host_bytes(resolved: ResolvedRun, process_group: str | None) -> int:
    """Host bytes of the libraries in a measured process; NCCL's only where it was used."""
    if process_group in (None, "nccl"):
        return resolved.host_libraries[1]
    one_rank = process_group == "nccl, 1 rank"
    return host_libraries(resolved.run, resolved.engine, nccl=one_rank)[1]


def run_file_of(row: MeasuredRun) -> dict[str, Any]:
    """The run file of a measured run; the record stands for a model that a function made.

    The function itself is never run, because a file of measurements must not run code.
    """
    if row.record is not None:
        return {**row.config, "model": {"recorded": load_record(row.record, "record")}}
    if row.function is not None:
        record = f"write calculate --function {row.function} --record FILE"
        raise InputError(f"{_not_run(row)}; {record}, and name FILE as the row's 'record'")
    program = row.config.get("program") or {}
    if str(program.get("tool")).startswith(WRITE_NOTHING):
        args = {"save_strategy": "no", **program.get("args", {})}  # as jobs/program.py runs it
        return {**row.config, "program": {**program, "args": args}}
    return row.config


def _not_run(row: MeasuredRun) -> str:
    return f"its model is made by {row.function}, which backtest does not run"


def by_estimate(row: MeasuredRun) -> Prediction:
    """The estimate of the measured rank; memory only where it was measured."""
    if set(row.measured) & set(METRICS.values()) == {METRICS["step"]}:
        return by_clock(row)
    if is_life(row.phases):
        return by_life(row)
    estimate = full_estimate(run_file_of(row), replay=False)
    (resolved, _), run = settled(estimate.resolved), estimate.resolved.run
    stage = stage_of_rank(row.rank, resolved.hardware.num_gpus, int(run.mesh.pp))
    if estimate.served:
        return by_server(estimate, stage)
    ledger = estimate.ledgers[stage]
    if resolved.run is not run:
        ledger = resolved.engine.ledger(replace(resolved.run, stage=stage))
    stage_replay = replay_stage(resolved, stage, ledger)
    names, micro_batches = tuple(row.phases), int(run.micro_batches)
    phases = phase_peaks(ledger, names, micro_batches)
    if stage_replay is None:
        startup = int(ledger.peak(phases=(STARTUP,)))
        return Prediction(allocated=int(ledger.peak(phases=STEP)), phases=phases, startup=startup)
    outside = outside_bytes(resolved.outside_torch, row.process_group)
    has = resolved.hardware.memory_bytes
    searched = not SEARCH_METRICS.isdisjoint(row.measured)  # the search takes longest
    needs = stage_replay.needs_bytes if searched else None
    fits = searched and replay_verdict(stage_replay, has - outside) == FITS
    trains = run.new_tokens is None  # libraries were measured in training alone
    host = int(ledger.peak(CPU)) + host_bytes(resolved, row.process_group) if trains else None
    return Prediction(
        allocated=stage_replay.allocated_bytes,
        startup=stage_replay.startup_bytes,
        reserved=stage_replay.reserved_bytes,
        needs=needs,
        device=stage_replay.reserved_bytes + outside + int(ledger.peak(UNIFIED)),
        host=host,
        fits=fits if searched else None,
        step=_step(row, resolved, stage),
        phases=phases | replayed_peaks(stage_replay.phases, names, micro_batches),
    )


def by_life(row: MeasuredRun) -> Prediction:
    """The estimate of a program's whole life."""
    estimate = life_estimate(run_file_of(row), row.phases, row.life)
    each = row.measured.get(MARK) == RESET
    peaks = life_peaks(estimate, row.phases, row.life, each=each)
    on_gpu = [peak for name, peak in peaks.items() if not name.endswith(HOST)]
    return Prediction(
        allocated=max(on_gpu),
        reserved=estimate.result.reserved_bytes,
        host=max((peak for name, peak in peaks.items() if name.endswith(HOST)), default=None),
        phases=peaks,
    )


def by_clock(row: MeasuredRun) -> Prediction:
    """The seconds of a step alone, for a row that has nothing else."""
    resolved = resolve(read(run_file_of(row)).file)
    run = resolved.run
    if run.new_tokens is not None or resolved.engine.serve is not None:
        raise InputError("measured.step_seconds is of training; a server has no steps")
    stage = stage_of_rank(row.rank, resolved.hardware.num_gpus, int(run.mesh.pp))
    return Prediction(step=predict_step(resolved, row.process_group, stage))


def _step(row: MeasuredRun, resolved: ResolvedRun, stage: int) -> float | None:
    """Seconds of a step where they were measured, and the card's speed is known."""
    if METRICS["step"] not in row.measured or resolved.run.new_tokens is not None:
        return None
    try:
        return predict_step(resolved, row.process_group, stage)
    except InputError:
        return None


def by_server(estimate: Estimate, stage: int) -> Prediction:
    """The estimate of a server's measured rank. Its tokens are those of the whole server, which the
    rank with the smallest pool decides.
    """
    serving = serving_result(estimate.served[stage])
    return Prediction(
        weights=serving.weights_bytes,
        activation=serving.activation_bytes,
        non_torch=serving.non_torch_bytes,
        graph=serving.graph_bytes,
        kv_pool=serving.kv_pool_bytes,
        kv_tokens=min((one.tokens for one in estimate.served if one.room_bytes), default=0),
        fits=estimate.result.fits_on_gpu,
    )


def by_trace(row: MeasuredRun) -> Prediction:
    """The run traced on fake tensors; an error of the traced run is a refusal."""
    if row.function is not None:
        raise InputError(f"{_not_run(row)}; use --rung estimate, or trace --function")
    by_tool = row.config.get("program") is not None
    try:
        if by_tool:
            traced = _torch_module("..script.program").trace_program(row.config, rank=row.rank)
        else:
            traced = _torch_module("..trace.run").trace(row.config, rank=row.rank)
    except InputError:
        raise
    except Exception as error:  # models and frameworks raise any type
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"the traced run failed, {type(error).__name__}: {reason}") from error
    outside = outside_bytes(traced.resolved.outside_torch, row.process_group)
    peaks = {name: int(phase.peak_bytes) for name, phase in traced.phases.items()}
    return Prediction(
        allocated=traced.allocated_bytes,
        startup=traced.startup_bytes,
        reserved=traced.reserved_bytes,
        needs=traced.needs_bytes,
        device=traced.reserved_bytes + outside,
        phases={n: peak for n in row.phases if (peak := _traced_peak(peaks, n)) is not None},
    )


def _torch_module(name: str) -> Any:
    try:
        import_module("torch")
        return import_module(name, __package__)
    except ImportError as error:
        raise InputError(NEEDS_TORCH.format(error.name or "torch")) from None


def _traced_peak(peaks: Mapping[str, int], name: str) -> int | None:
    """A phase's peak in bytes; steps after the last traced one have its peaks."""
    if name in peaks or (phase := parse(name)) is None:
        return peaks.get(name)
    last = max((p.step for p in map(parse, peaks) if p is not None), default=0)
    if not 0 < last < phase.step:
        return None
    return peaks.get(f"s{last}.{name.partition('.')[2]}")


RUNGS: dict[str, Rung] = {"estimate": by_estimate, "trace": by_trace}


def check_rung(rung: str) -> None:
    """Raise InputError where a rung cannot run at all, because torch is not installed."""
    if rung == "trace":
        _torch_module("..trace.run")
