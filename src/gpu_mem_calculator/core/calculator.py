"""The calculator: a run file in, the four numbers and the ledger behind them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..generation.instants import DECODE, PREFILL
from ..ledger.ledger import ACT, CACHE, CPU, GRAD, NVME, OPTIM, PARAM, UNIFIED, Instant, Ledger
from ..ledger.units import GIB
from ..model.adapters import total_adapter_parameters
from ..run.phases import BACKWARD, FORWARD, OPTIMIZER, STARTUP
from ..run.run import Run
from ..run.served import SERVE, NamedBytes, ServerMemory
from .errors import InputError
from .fit_verdict import FITS, SHORT, verdict
from .models import (
    EngineConfig,
    GPUConfig,
    MemoryBreakdown,
    MemoryResult,
    ModelConfig,
    ParallelismConfig,
    RunFile,
    StageResult,
    TrainingConfig,
)
from .resolve import resolve
from .resolved_run import ResolvedRun
from .runfile import as_dict, gathered, read
from .serving_result import asked_for, serving_result
from .stage_replay import StageReplay, replayed, with_blocks

STEP = (FORWARD, BACKWARD, OPTIMIZER, PREFILL, DECODE, SERVE)  # whatever is not start-up
Source = str | Path | Mapping[str, Any] | RunFile


class Estimate(Struct, frozen=True, kw_only=True):
    """A result with the ledgers it comes from, one for each pipeline stage."""

    result: MemoryResult
    resolved: ResolvedRun
    ledgers: tuple[Ledger, ...]
    replayed: StageReplay | None = (
        None  # the busiest stage; None where only the ledger was asked for
    )
    served: tuple[ServerMemory, ...] = ()  # each stage of a server with a pool for its cache

    @property
    def ledger(self) -> Ledger:
        """The busiest stage's."""
        return self.ledgers[self.result.busiest_stage]

    @property
    def serves(self) -> bool:
        """Whether it is a run of inference."""
        return self.resolved.run.new_tokens is not None

    @property
    def outside_torch(self) -> tuple[NamedBytes, ...]:
        """What CUDA takes beside torch on the busiest stage's cards."""
        if self.served:
            return self.served[self.result.busiest_stage].outside
        return self.resolved.outside_torch


def estimate(source: Source | Struct, *sections: Struct, replay: bool = True) -> MemoryResult:
    """Estimate a run: a path, a dict, a `RunFile`, or config objects in any order.

    Without `replay` the ledger answers alone, in a millisecond: no reserved_bytes or needs_bytes,
    and the total is without what the allocator adds.
    """
    if isinstance(source, Struct) and not isinstance(source, RunFile):
        source = gathered(source, *sections)
    elif sections:
        raise InputError(["estimate takes one run, or config objects such as ModelConfig"])
    return full_estimate(source, replay=replay).result


def full_estimate(source: Source, *, replay: bool = True) -> Estimate:
    """Estimate a run and keep its ledgers."""
    file = read(source)
    resolved = resolve(file)
    if resolved.engine.serve is not None:
        return _served(file, resolved)
    ledgers = _ledgers(resolved)
    peaks = [int(ledger.peak(phases=STEP)) for ledger in ledgers]
    busiest = peaks.index(max(peaks))
    found = replayed(resolved, busiest) if replay else None
    if found is not None:
        peaks[busiest] = found.allocated_bytes
        whole = with_blocks(ledgers[busiest], found)
        ledgers = (*ledgers[:busiest], whole, *ledgers[busiest + 1 :])
    outside = sum(size for _, size, _ in resolved.outside_torch)
    result = _result(file, resolved, ledgers, peaks, busiest, found, outside)
    return Estimate(result=result, resolved=resolved, ledgers=ledgers, replayed=found)


def _served(file: RunFile, resolved: ResolvedRun) -> Estimate:
    """A server fills its pool: it fits where it starts. The stage with least room decides."""
    assert resolved.engine.serve is not None
    served = tuple(map(resolved.engine.serve, _stage_runs(resolved)))
    ledgers = tuple(one.ledger for one in served)
    peaks = [int(ledger.peak(phases=STEP)) for ledger in ledgers]
    least = min(range(len(served)), key=lambda i: _room(served[i]))
    own = served[least]
    outside = sum(size for _, size, _ in own.outside)
    result = _result(file, resolved, ledgers, peaks, least, None, outside)
    device = peaks[least] + outside
    result = replace(
        result, serving=serving_result(own, resolved.model.address, served), device_bytes=device,
        needs_bytes=own.needs_bytes, fits_on_gpu=not own.problem,
        verdict=SHORT if own.problem else FITS,
        warnings=[*result.warnings, *own.notes, *asked_for(resolved.run, served)],
    )  # fmt: skip
    return Estimate(result=result, resolved=resolved, ledgers=ledgers, served=served)


def _room(one: ServerMemory) -> tuple[bool, bool, int, int]:
    """Less for a rank that decides: it has a problem, keeps something, holds fewer tokens."""
    return not one.problem, not one.room_bytes, one.tokens, -one.needs_bytes


def _stage_runs(resolved: ResolvedRun) -> Iterator[Run]:
    return (replace(resolved.run, stage=stage) for stage in range(resolved.run.mesh.pp))


def _ledgers(resolved: ResolvedRun) -> tuple[Ledger, ...]:
    """One for each pipeline stage."""
    return tuple(map(resolved.engine.ledger, _stage_runs(resolved)))


def busiest_stage(resolved: ResolvedRun) -> int:
    """The stage whose ledger is highest."""
    peaks = [int(ledger.peak(phases=STEP)) for ledger in _ledgers(resolved)]
    return peaks.index(max(peaks))


def needed_bytes(resolved: ResolvedRun, run: Run) -> int:
    """What the card must have for a run by its ledger alone: the busiest stage's peak, and what
    CUDA takes beside.
    """
    ledgers = _ledgers(replace(resolved, run=run))
    highest = max(int(ledger.peak(phases=STEP)) for ledger in ledgers)
    return highest + sum(size for _, size, _ in resolved.outside_torch)


def _result(
    file: RunFile,
    resolved: ResolvedRun,
    ledgers: tuple[Ledger, ...],
    peaks: list[int],
    busiest: int,
    found: StageReplay | None,
    outside: int,
) -> MemoryResult:
    run, hardware = resolved.run, resolved.hardware
    ledger = ledgers[busiest]
    highest = [one.peak_instant(phases=STEP) for one in ledgers]
    peak = highest[busiest]
    allocated = peaks[busiest] if found is None else found.allocated_bytes
    card = (allocated if found is None else found.needs_bytes) + outside
    starts = [int(ledger.at(i)) for i in ledger.instants if i.phase == STARTUP]
    unified = int(ledger.peak(UNIFIED))
    _, libraries, _ = resolved.host_libraries
    host = (_most(ledgers, CPU) + libraries) * hardware.gpus_per_node
    disk = _most(ledgers, NVME) * hardware.gpus_per_node
    return MemoryResult(
        total_memory_per_gpu_gb=card / GIB,
        total_memory_all_gpus_gb=card * hardware.num_gpus / GIB,
        cpu_memory_gb=host / GIB,
        fits_on_gpu=card <= hardware.memory_bytes,
        verdict=verdict(card, hardware.memory_bytes),
        headroom_bytes=hardware.memory_bytes - card,
        memory_utilization_percent=100 * card / hardware.memory_bytes,
        breakdown=_breakdown(ledger, peak, card),
        allocated_bytes=allocated,
        startup_bytes=max(starts, default=None) if found is None else found.startup_bytes,
        reserved_bytes=None if found is None else found.reserved_bytes,
        needs_bytes=None if found is None else found.needs_bytes,
        device_bytes=None if found is None else found.reserved_bytes + outside + unified,
        outside_torch_bytes=outside,
        gpu_memory_bytes=hardware.memory_bytes,
        host_bytes_per_node=host,
        disk_bytes_per_node=disk,
        peak_phase=peak.phase,
        peak_instant=peak.title,
        num_parameters=_parameters(run),
        trainable_parameters=_trainable(resolved),
        busiest_stage=busiest,
        stages=_stages(resolved, highest, peaks),
        timeline=_timeline(ledger),
        assumed=list(resolved.assumed),
        warnings=list(resolved.warnings),
        run=as_dict(file),
    )


def _parameters(run: Run) -> int:
    """Of the whole model in training, of the text model where it is served."""
    tower = run.arch.tower_parameters if run.new_tokens is None else 0
    return run.parameters_given or run.arch.num_parameters + tower


def _trainable(resolved: ResolvedRun) -> int:
    run = resolved.run
    if run.new_tokens is not None:
        return 0
    if run.adapter is None:
        return _parameters(run)
    adapter = run.adapter
    return total_adapter_parameters(run.arch, adapter.rank, adapter.targets, dora=adapter.dora)


def _breakdown(ledger: Ledger, peak: Instant, card: int) -> MemoryBreakdown:
    """The seed's five parts, as alive at the peak; they add up to what the card must have."""
    parts = ledger.parts(peak)
    named = [int(parts[kind]) for kind in (PARAM, GRAD, OPTIM, ACT)]
    named[3] += int(parts[CACHE])
    return MemoryBreakdown(
        model_params_gb=named[0] / GIB,
        gradients_gb=named[1] / GIB,
        optimizer_states_gb=named[2] / GIB,
        activations_gb=named[3] / GIB,
        overhead_gb=(card - sum(named)) / GIB,
    )


def _most(ledgers: tuple[Ledger, ...], place: str) -> int:
    """Bytes elsewhere of the rank that holds most there."""
    return max(int(ledger.peak(place)) for ledger in ledgers)


def _stages(resolved: ResolvedRun, highest: list[Instant], peaks: list[int]) -> list[StageResult]:
    run, engine = resolved.run, resolved.engine
    layers = engine.stage_layers(run) if engine.stage_layers else [len(run.arch.layers)]
    return [
        StageResult(
            stage=i,
            num_layers=layers[i],
            allocated_bytes=peaks[i],
            peak_phase=instant.title,
        )
        for i, instant in enumerate(highest)
    ]


def _timeline(ledger: Ledger) -> list[dict[str, Any]]:
    """Each instant with its bytes by kind, in the order of a step."""
    return [
        {
            "instant": instant.name,
            "title": instant.title,
            "phase": instant.phase,
            "bytes": {k: int(v) for k, v in ledger.parts(instant).items()},
        }
        for instant in ledger.instants
        if instant.present
    ]


class GPUMemoryCalculator:
    """The documented face: config objects in, `calculate()` gives the result."""

    def __init__(
        self,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        parallelism_config: ParallelismConfig | None = None,
        engine_config: EngineConfig | None = None,
        gpu_config: GPUConfig | None = None,
    ) -> None:
        self.file = RunFile(
            model=model_config,
            training=training_config,
            parallelism=parallelism_config or ParallelismConfig(),
            engine=engine_config or EngineConfig(),
            hardware=gpu_config or GPUConfig(),
        )

    @classmethod
    def from_config_file(cls, path: str | Path) -> GPUMemoryCalculator:
        """A calculator for a run file."""
        file = read(path)
        return cls(file.model, file.training, file.parallelism, file.engine, file.hardware)

    def calculate(self) -> MemoryResult:
        """Estimate the run."""
        return estimate(self.file)

    def to_dict(self) -> dict[str, Any]:
        """The run file as plain data."""
        data: dict[str, Any] = as_dict(self.file)
        return data
