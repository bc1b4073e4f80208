"""Which TensorRT-LLM it is, which of its backends runs, and what each version has by default."""

from __future__ import annotations

import re

from ...run.run import Run

Version = tuple[int, int, int]
NEWEST, OLDEST = (1, 2, 1), (0, 8, 0)
TORCH, ENGINES = "pytorch", "tensorrt"


def parse_version(text: str) -> Version | None:
    """Major, minor and patch of `1.2.1` or `1.1.0rc3`; None where it is no version."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def version(run: Run) -> Version:
    """The version that is modelled for it."""
    return min(NEWEST, parse_version(str(run.options["engine_version"])) or NEWEST)


def backend(run: Run) -> str:
    """`pytorch` since 1.0, TensorRT engines before, where nothing was said."""
    given = run.options.get("engine_generation")
    return str(given) if given else TORCH if version(run) >= (1, 0, 0) else ENGINES


def row_of_version(run: Run, table: tuple[tuple[Version, int], ...]) -> int:
    """The row of a table that a version has."""
    return next(value for first, value in table if version(run) >= first)
