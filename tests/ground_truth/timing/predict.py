"""Predictions for the public rows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.timing.training.step import step_seconds

from .baseline import Utilised, utilised
from .score import Predicted
from .translate import Refused, TimedRun, resolved_runs


class Predictions(Struct, frozen=True):
    """Predictions, the measured MFU of each run, and the runs that the calculator refuses."""

    found: list[Predicted]
    utilised: list[Utilised]
    refused: list[Refused]


def predictions(runs: Sequence[TimedRun]) -> Predictions:
    """Predictions for some runs."""
    all_of_it = Predictions([], [], [])
    for run, resolved in resolved_runs(tuple(runs)):
        made = resolved if isinstance(resolved, Refused) else predicted(run, resolved)
        if isinstance(made, Refused):
            all_of_it.refused.append(made)
        else:
            assert isinstance(resolved, ResolvedRun)
            all_of_it.found.append(made)
            all_of_it.utilised.append(utilised(run, resolved))
    return all_of_it


def predicted(run: TimedRun, resolved: ResolvedRun) -> Predicted | Refused:
    """The prediction for one run."""
    try:
        machine = machine_of(resolved.hardware)
        made = step_seconds(resolved.run, resolved.engine.name, machine)
    except InputError as error:
        return Refused(run.row, str(error).splitlines()[0])
    return Predicted(
        run=run, estimate=float(made.estimate), low=float(made.low), high=float(made.high)
    )
