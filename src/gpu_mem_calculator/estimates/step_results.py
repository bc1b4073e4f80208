"""The first steps of a replay, phase by phase, and where one that does not fit dies."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..pytorch.replay.allocator import ReplayPhase
from ..run.phases import BACKWARD, EVALUATION, FORWARD, GENERATION, OPTIMIZER, SAVING, STARTUP
from .result import OutOfMemory, PhaseResult, StepResult
from .stage_replay import StageReplay

PHASES = {
    "gen": GENERATION,
    "fwd": FORWARD,
    "bwd": BACKWARD,
    "fwdbwd": "forward and backward",
    "sync": "gradient synchronization",
    "opt": OPTIMIZER,
    "eval": EVALUATION,
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
