"""The predicted seconds of a step of a measured run."""

from __future__ import annotations

from ...estimates.machine import machine_of
from ...runfile.resolve.resolved_run import ResolvedRun
from ...timing.training.alone import alone_seconds
from ...timing.training.step import step_seconds

ALONE = ("none", "fake", "nccl, 1 rank")  # process groups in which nobody waits for another rank


def predict_step(resolved: ResolvedRun, process_group: str | None, stage: int) -> float:
    """Seconds of a step; without communication where the process group moved nothing."""
    run, engine = resolved.run, resolved.engine.name
    machine = machine_of(resolved.hardware)
    if process_group in ALONE:
        return float(alone_seconds(run, engine, machine, stage))
    return float(step_seconds(run, engine, machine).estimate)
