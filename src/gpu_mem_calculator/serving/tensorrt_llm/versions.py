"""TensorRT-LLM's version and backend."""

from __future__ import annotations

import re

from ...published.frameworks import TENSORRT_LLM, numbers
from ...run.run import Run

Version = tuple[int, int, int]
NEWEST, OLDEST = TENSORRT_LLM.numbers, numbers(TENSORRT_LLM.oldest)
TORCH, ENGINES = "pytorch", "tensorrt"


def parse_version(text: str) -> Version | None:
    """Major, minor and patch of `1.2.1` or `1.1.0rc3`; None if the text is not a version."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def version(run: Run) -> Version:
    """The version that is modelled: the run's, at most the newest."""
    return min(NEWEST, parse_version(str(run.options["engine_version"])) or NEWEST)


def backend(run: Run) -> str:
    """The backend: `engine_generation`, by default `pytorch` since 1.0 and `tensorrt` before."""
    generation = run.options.get("engine_generation")
    return str(generation) if generation else TORCH if version(run) >= (1, 0, 0) else ENGINES


def row_of_version(run: Run, table: tuple[tuple[Version, int], ...]) -> int:
    """The value of a table's first row whose version is not newer than the run's."""
    return next(value for first, value in table if version(run) >= first)
