"""A set-up in full: memory with replay and margin, time with its parts, price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....estimates.calculator import stage_ledgers, training_figures
from ....estimates.figures import Figures
from ....estimates.machine import machine_of
from ....estimates.memory_result import memory_result, stage_layers
from ....estimates.stage_ledgers import StageLedgers, step_phases
from ....ledger.ledger import CPU, RANK_0, UNIFIED, Ledger
from ....runfile.config import RunFile
from ....runfile.resolve.resolve_training import resolve_training
from ....runfile.resolve.resolved_run import ResolvedRun
from ....timing.training.flops import mfu, model_flops
from ....timing.training.step import step_seconds
from ....timing.training.step_seconds import PARTS
from ....tools.read import read
from ....training.engines import engine_row
from ....training.step.layer_groups import equal_layers
from ..answers.plans import Plan, PlanSeconds, PlanStage
from ..answers.question import PlanQuestion
from .search import SetUp, named_settings

HOUR = 3600
FEW = 8  # pipeline stages, whose ledgers one by one are as quick as one for all


class Tried(Struct, frozen=True, kw_only=True):
    """A run that was replayed: `settings` are the keys by which it is named."""

    run: Mapping[str, Any]
    settings: Mapping[str, Any]
    file: RunFile
    figures: Figures

    @property
    def fits(self) -> bool:
        """Whether it fits with replay and margin."""
        return self.figures.fit


def tried_run(run: Mapping[str, Any], settings: Mapping[str, Any]) -> Tried:
    """A run file, replayed."""
    file = read(dict(run)).file
    resolved = resolve_training(file)
    figures = training_figures(resolved, ledgers=StagesTogether(resolved))
    return Tried(run=run, settings=settings, file=file, figures=figures)


class StagesTogether(StageLedgers):
    """The ledgers of a run's pipeline stages, whose figures are those of one ledger of them all
    where layers are equal and the engine's ledger takes arrays of stages.
    """

    def __init__(self, resolved: ResolvedRun) -> None:
        alone = stage_ledgers(resolved)
        super().__init__(alone.stages, alone.__getitem__)
        run, row = resolved.run, engine_row(resolved.engine.name)
        arrays = not row.apart and equal_layers(run) and not run.stage_counts
        self.together = _together(resolved) if arrays and self.stages > FEW else []

    def peaks(self, phases: Iterable[str]) -> list[int]:
        """The highest instant of some phases, of each stage: at the moment that is its highest."""
        if not self.together:
            return super().peaks(phases)
        every, found = self._every, self._heights(phases)
        if (every.max(axis=0) > found.max(axis=0)).any():  # start-up hides which moment is highest
            return super().peaks(phases)
        return [int(peak) for peak in found.max(axis=0)]

    def highest(self, stage: int) -> tuple[int, int]:
        """The highest instant of a stage, and that of its steps at the same moment."""
        if not self.together:
            return super().highest(stage)
        moment = int(self._every[:, stage].argmax())
        steps = self._heights(step_phases(self.together[0]))
        return int(self._every[moment, stage]), int(steps[moment, stage])

    def _heights(self, phases: Iterable[str] | None) -> Any:
        """The highest instant of some phases at each moment, of each stage."""
        import numpy as np

        peaks: list[Any] = [ledger.peak(phases=phases) for ledger in self.together]
        return np.array([np.broadcast_to(peak, self.stages) for peak in peaks])

    @cached_property
    def _every(self) -> Any:
        return self._heights(None)

    @cached_property
    def _places(self) -> set[str]:
        return {entry.place for ledger in self.together for entry in ledger.entries}

    def unified_bytes(self, stage: int) -> int:
        """The most bytes of managed memory on a stage."""
        used = not self._places or UNIFIED in self._places
        return super().unified_bytes(stage) if used else 0

    def host_bytes(self, ranks: int, phases: Iterable[str] | None = None) -> int:
        """The highest bytes on the host of a node with `ranks` ranks."""
        used = not self._places or self._places & {CPU, RANK_0}
        return super().host_bytes(ranks, phases) if used else 0


def _together(resolved: ResolvedRun) -> list[Ledger]:
    """The ledger of all stages, at each moment that may have the peak of one."""
    import numpy as np

    run, engine = resolved.run, resolved.engine
    run = replace(run, stage=np.arange(int(run.mesh.pp)))
    return engine.ledgers(run) if engine.ledgers is not None else [engine.ledger(run)]


def full_plan(tried: Tried, *, price: float | None = None, tokens: int | None = None) -> Plan:
    """The plan of a run."""
    figures = tried.figures
    resolved = figures.resolved
    return Plan(
        **speed(resolved, price, tokens),
        rank=0,
        run=dict(tried.run),
        settings=dict(tried.settings),
        needs_bytes=figures.needs or figures.allocated,
        allocated_bytes=figures.allocated,
        margin_bytes=figures.margin or 0,
        headroom_bytes=figures.headroom,
        fits_on_gpu=figures.fit,
        open=_open(tried),
        host_bytes_per_node=figures.node.bytes_per_node,
        stages=[
            PlanStage(stage=stage, layers=layers, allocated_bytes=peak)
            for stage, (layers, peak) in enumerate(
                zip(stage_layers(resolved), figures.peaks, strict=True)
            )
        ],
    )


def ledger_plan(
    set_up: SetUp, resolved: ResolvedRun, run: Mapping[str, Any], question: PlanQuestion
) -> Plan:
    """The plan of a set-up that is not replayed yet."""
    return Plan(
        **speed(resolved, question.price, question.tokens),
        rank=0,
        run=dict(run),
        settings=named_settings(set_up),
        needs_bytes=set_up.allocated_bytes,
        allocated_bytes=set_up.allocated_bytes,
        margin_bytes=0,
        headroom_bytes=resolved.hardware.memory_bytes - set_up.total_bytes,
        fits_on_gpu=True,
        replayed=False,
    )


def speed(resolved: ResolvedRun, price: float | None, tokens: int | None) -> dict[str, Any]:
    """The fields of a plan that say how fast it is, and what all tokens cost."""
    seconds, gpus = plan_seconds(resolved), resolved.hardware.num_gpus
    rate = step_tokens(resolved) / seconds.estimate
    hours = None if tokens is None else tokens / rate * gpus / HOUR
    return {
        "step_seconds": seconds,
        "tokens_per_second": rate,
        "mfu": _mfu(resolved, seconds.estimate),
        "gpu_hours": hours,
        "cost": None if hours is None or price is None else hours * price,
    }


def _open(tried: Tried) -> list[str]:
    """What is not modelled and could add to what a run needs."""
    if not tried.figures.resolved.limits:
        return []
    limits = memory_result(tried.file, tried.figures).limits
    return [str(one) for one in limits if one.adds_bytes != 0]


def step_tokens(resolved: ResolvedRun) -> int:
    """Tokens of one step over all GPUs."""
    run = resolved.run
    return int(run.batch) * int(run.micro_batches) * int(run.mesh.dp) * int(run.seq)


def plan_seconds(resolved: ResolvedRun) -> PlanSeconds:
    """The time of a step of a run."""
    time = step_seconds(resolved.run, resolved.engine.name, machine_of(resolved.hardware))
    return PlanSeconds(
        estimate=float(time.estimate),
        low=float(time.low),
        high=float(time.high),
        parts={name: float(getattr(time, name)) for name in PARTS},
    )


def _mfu(resolved: ResolvedRun, seconds: float) -> float:
    """Model FLOPs over the dense peak of the cards in the dtype of the arithmetic."""
    run, hardware = resolved.run, resolved.hardware
    peak = machine_of(hardware).peak[run.precision.partition("_")[0]]  # of the arithmetic's dtype
    flops = model_flops(run.arch, step_tokens(resolved), int(run.seq), frozen=run.frozen)
    return float(mfu(flops, seconds, hardware.num_gpus, peak))
