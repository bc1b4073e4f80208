"""The figures of a result, from the ledgers and the replay of its busiest stage.

The first steps of a replay, phase by phase, and where one that does not fit dies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..ledger.ledger import ACT, CACHE, GRAD, NVME, OPTIM, PARAM, Instant, Ledger
from ..ledger.units import GIB
from ..models.arch.adapters import total_adapter_parameters
from ..pytorch.replay.footprint import ReplayPhase
from ..run.limits import BoundedLimit, Limit
from ..run.phases import (
    BACKWARD,
    DECODE,
    EVALUATION,
    FORWARD,
    GENERATING,
    GENERATION,
    OPTIMIZER,
    PREFILL,
    SAVING,
    STARTUP,
)
from ..run.run import Run
from ..run.served import SERVE
from ..runfile.config import RunFile
from ..runfile.read import as_dict
from ..runfile.resolve.resolved_run import ResolvedRun
from .bounds import bounded, bounded_verdict
from .figures import Figures
from .fit_verdict import FITS, SHORT, gap_warning
from .node import NodeMemory, on_node
from .result import (
    LengthsResult,
    MemoryBreakdown,
    MemoryResult,
    OutOfMemory,
    PhaseResult,
    StageResult,
    StepResult,
)
from .summary import subject_words, summary
from .verdict_words import card_bounds

if TYPE_CHECKING:
    from .stage_replay import StageReplay

PHASES = {
    "gen": GENERATION,
    "fwd": FORWARD,
    "bwd": BACKWARD,
    "fwdbwd": "forward and backward",
    "sync": "gradient synchronization",
    "opt": OPTIMIZER,
    "eval": EVALUATION,
    "text": GENERATING,
    "save": SAVING,
}


def step_results(phases: Mapping[str, ReplayPhase]) -> list[StepResult]:
    """The steps of a replay; empty for inference, which has none."""
    steps: dict[int, list[PhaseResult]] = {}
    for mark, figures in phases.items():
        found = _parts(mark)
        if found is not None:
            step, micro_batch, phase = found
            result = PhaseResult(
                phase=phase,
                micro_batch=micro_batch,
                peak_bytes=figures.peak_bytes,
                reserved_bytes=figures.reserved_bytes,
            )
            steps.setdefault(step, []).append(result)
    return [_step(step, results) for step, results in steps.items()]


def _step(step: int, phases: list[PhaseResult]) -> StepResult:
    highest = max(phases, key=lambda one: one.peak_bytes)
    return StepResult(
        step=step, peak_bytes=highest.peak_bytes, peak_phase=highest.phase, phases=phases
    )


def _parts(mark: str) -> tuple[int, int | None, str] | None:
    """Step and micro-batch, both from 1, and phase of a mark such as `s0.a0.fwd`."""
    found = re.fullmatch(r"s(\d+)(?:\.a(\d+))?\.(\w+)", mark)
    if found is None:
        return None
    micro_batch = None if found[2] is None else int(found[2]) + 1
    return int(found[1]) + 1, micro_batch, PHASES.get(found[3], found[3])


def failure(replayed: StageReplay, cap: int) -> OutOfMemory | None:
    """Where a run dies if torch may take at most `cap` bytes; None where it survives."""
    mark = replayed.fails_in(cap)
    if mark is None:
        return None
    found = _parts(mark)
    if found is None:
        return OutOfMemory(step=0, phase=mark if mark != STARTUP else STARTUP)
    step, _, phase = found
    return OutOfMemory(step=step, phase=phase)


# All phases but start-up.
STEP = (
    GENERATION,
    FORWARD,
    BACKWARD,
    OPTIMIZER,
    EVALUATION,
    GENERATING,
    SAVING,
    PREFILL,
    DECODE,
    SERVE,
)


def memory_result(file: RunFile, figures: Figures) -> MemoryResult:
    """The result of a run."""
    resolved, replayed = figures.resolved, figures.replayed
    run, hardware = resolved.run, resolved.hardware
    ledgers, busiest, outside = figures.ledgers, figures.busiest, figures.outside
    ledger = ledgers[busiest]
    highest = [one.peak_instant(phases=STEP) for one in ledgers]
    peak = highest[busiest]
    card, has, word, starts = figures.card, hardware.memory_bytes, figures.verdict, figures.starts
    reserved = 0 if replayed is None else replayed.reserved_bytes
    over = _spilled(figures)
    dies = word == SHORT and not over
    gap = "" if replayed is None else gap_warning(word, replayed, has - outside, outside)
    taken = (figures.on_card or reserved) + outside + figures.unified
    host = None if figures.resolved.engine.serve is not None else figures.node
    host_bytes = 0 if host is None else host.bytes_per_node
    disk = _highest_bytes(ledgers, NVME) * hardware.gpus_per_node
    result = MemoryResult(
        total_memory_per_gpu_gb=card / GIB,
        total_memory_all_gpus_gb=card * hardware.num_gpus / GIB,
        cpu_memory_gb=host_bytes / GIB,
        fits_on_gpu=word == FITS,
        verdict=word,
        headroom_bytes=figures.headroom,
        memory_utilization_percent=100 * card / has,
        breakdown=_breakdown(ledger, peak, card),
        allocated_bytes=figures.allocated,
        startup_bytes=max(starts, default=None) if replayed is None else replayed.startup_bytes,
        reserved_bytes=reserved or None,
        needs_bytes=figures.needs,
        margin_bytes=figures.margin,
        reserved_on_card_bytes=figures.on_card,
        device_bytes=None if replayed is None else taken - figures.evicted,
        outside_torch_bytes=outside,
        gpu_memory_bytes=has,
        held_bytes=hardware.card_bytes - has,
        spills_bytes=over,
        host_bytes_per_node=host_bytes,
        disk_bytes_per_node=disk,
        peak_phase=peak.phase,
        peak_instant=peak.title,
        num_parameters=_parameters(run),
        trainable_parameters=_trainable(resolved),
        busiest_stage=busiest,
        stages=_stages(resolved, highest, figures.peaks),
        timeline=_timeline(ledger),
        assumed=list(resolved.assumed),
        warnings=[*resolved.warnings, *filter(None, [gap])],
        run=as_dict(file),
        subject=subject_words(resolved, _program(file)),
        steps=[] if replayed is None else step_results(replayed.phases),
        fails_at=failure(replayed, has - outside) if replayed and dies else None,
        versions=dict(resolved.versions),
        decisive=[*resolved.decisive, *host_words(host)],
        phases=[] if host is None else figures.life,
        host=host,
        lengths=None if resolved.lengths is None else _lengths(figures),
    )
    return with_limits(result, resolved.limits, run)


def _program(file: RunFile) -> tuple[str, str, str] | None:
    """The tool whose words a run has, its package and the release that is modelled."""
    if file.program is None:
        return None
    from ..tools.translation.tools import TOOLS  # most runs have no program

    tool = TOOLS[file.program.tool]
    return file.program.tool, tool.package, tool.version


def host_words(host: NodeMemory | None) -> list[str]:
    """Host RAM of a node, which nobody has said, where it is much."""
    unsaid = host is not None and host.node_bytes is None and host.is_large
    return [host.words] if host is not None and unsaid else []


def _lengths(figures: Figures) -> LengthsResult | None:
    from .lengths_result import lengths_result

    return lengths_result(figures)


def _spilled(figures: Figures) -> int:
    """What the driver puts into the host's memory of a run that finds no room on the card; 0 where
    it does not, or where the host has too little.
    """
    hardware = figures.resolved.hardware
    if hardware.spilling is None or figures.verdict != SHORT:
        return 0
    over = figures.card - (figures.margin or 0) - hardware.memory_bytes
    room = hardware.spilling.spill_bytes
    return max(over, 1) if room is None or over <= room else 0


def with_limits(
    result: MemoryResult, limits: Sequence[Limit | BoundedLimit], run: Run | None = None
) -> MemoryResult:
    """A result with more that is not modelled, and its verdict with all bounds; `run` has the
    shapes that some bounds need.
    """
    more = [bounded(one, result, run) if isinstance(one, Limit) else one for one in limits]
    every = [*result.limits, *more]
    word = on_node(bounded_verdict(result.verdict, result.headroom_bytes, every), result.host)
    result = replace(result, limits=every, verdict=word, fits_on_gpu=word == FITS)
    return replace(result, summary=summary(result), **card_bounds(result))


def _parameters(run: Run) -> int:
    """Parameters of the whole model in training, of the text model in inference."""
    tower = run.arch.tower_parameters if run.new_tokens is None else 0
    return run.parameters_given or run.arch.num_parameters + tower


def _trainable(resolved: ResolvedRun) -> int:
    run = resolved.run
    if run.new_tokens is not None:
        return 0
    if run.adapter is None:
        return _parameters(run) - (run.arch.tower_parameters if run.freeze_vision_tower else 0)
    adapter = run.adapter
    return total_adapter_parameters(run.arch, adapter.rank, adapter.targets, dora=adapter.dora)


def _breakdown(ledger: Ledger, peak: Instant, card: int) -> MemoryBreakdown:
    """Five parts, as alive at the peak; they add up to `card`, the bytes the card must have."""
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


def _highest_bytes(ledgers: Iterable[Ledger], place: str) -> int:
    """The highest bytes of any stage in a place other than the GPU."""
    return max(int(ledger.peak(place)) for ledger in ledgers)


def _stages(resolved: ResolvedRun, highest: list[Instant], peaks: list[int]) -> list[StageResult]:
    layers = stage_layers(resolved)
    return [
        StageResult(
            stage=i, num_layers=layers[i], allocated_bytes=peaks[i], peak_phase=instant.title
        )
        for i, instant in enumerate(highest)
    ]


def stage_layers(resolved: ResolvedRun) -> Sequence[int]:
    """The layers of each pipeline stage."""
    run, engine = resolved.run, resolved.engine
    return engine.stage_layers(run) if engine.stage_layers else [len(run.arch.layers)]


def _timeline(ledger: Ledger) -> list[dict[str, Any]]:
    """Each instant with its bytes by kind, in the order of time."""
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
