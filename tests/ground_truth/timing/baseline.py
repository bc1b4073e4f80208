"""What one number would say: the constant MFU that fits all other sources best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from msgspec import Struct

from gpu_mem_calculator import catalog
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.timing.training.flops import mfu, model_flops

from .translate import TimedRun

TERA = 1e12


class Utilised(Struct, frozen=True):
    """A run's source, and the share of the cards' peak that it measured."""

    source: str
    mfu: float


def utilised(run: TimedRun, resolved: ResolvedRun) -> Utilised:
    """The measured MFU of a run."""
    flops = model_flops(resolved.run.arch, run.tokens, resolved.run.seq)
    gpus = run.file["hardware"]["num_gpus"]
    return Utilised(run.source, float(mfu(flops, run.seconds, gpus, peak_flops(run))))


def peak_flops(run: TimedRun) -> float:
    """The dense peak of one card in the run's dtype."""
    row = catalog.find("gpus", run.file["hardware"]["gpu"])
    assert row is not None
    dtype = run.file["training"]["precision"].partition("_")[0]
    return float(row["tflops"][dtype]) * TERA


def best_constant(runs: Iterable[Utilised]) -> float:
    """The MFU with the least mean error, where every source counts the same.

    A run with MFU m is predicted m / c times too long. The sum of |m / c - 1| is convex in 1 / c
    with its corners at c = m, so the best c is one of them.
    """
    by_source: dict[str, list[float]] = {}
    for one in runs:
        by_source.setdefault(one.source, []).append(one.mfu)
    weighed = sorted(
        (value, value / len(values)) for values in by_source.values() for value in values
    )
    half = sum(weight for _, weight in weighed) / 2
    passed = 0.0
    for value, weight in weighed:
        passed += weight
        if passed >= half:
            return value
    raise ValueError("no runs")


def left_out_errors(runs: Sequence[Utilised]) -> Mapping[str, list[float]]:
    """The errors in percent of each source's runs by the constant of all other sources."""
    found: dict[str, list[float]] = {}
    for source in dict.fromkeys(one.source for one in runs):
        constant = best_constant(one for one in runs if one.source != source)
        found[source] = [100 * (one.mfu / constant - 1) for one in runs if one.source == source]
    return found


def mean_size(errors: Iterable[float]) -> float:
    """The mean of the sizes of errors."""
    return mean(abs(error) for error in errors)
