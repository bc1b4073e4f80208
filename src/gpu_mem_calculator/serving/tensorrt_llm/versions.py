"""TensorRT-LLM's version and backend."""

from __future__ import annotations

from ...ledger.frameworks import TENSORRT_LLM
from ...run.releases import Version, modelled_version
from ...run.run import Run

NEWEST, OLDEST = TENSORRT_LLM.numbers, TENSORRT_LLM.oldest_numbers
TORCH, ENGINES = "pytorch", "tensorrt"


def version(run: Run) -> Version:
    """The version that is modelled: the run's, at most the newest."""
    return modelled_version(run, NEWEST)


def backend(run: Run) -> str:
    """The backend: `engine_generation`, by default `pytorch` since 1.0 and `tensorrt` before."""
    generation = run.options.get("engine_generation")
    return str(generation) if generation else TORCH if version(run) >= (1, 0, 0) else ENGINES


def row_of_version(run: Run, table: tuple[tuple[Version, int], ...]) -> int:
    """The value of a table's first row whose version is not newer than the run's."""
    return next(value for first, value in table if version(run) >= first)
