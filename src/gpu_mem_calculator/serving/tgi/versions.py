"""TGI's version, and the changes between versions."""

from __future__ import annotations

import re

from ...published.frameworks import TGI, numbers
from ...run.run import Run

Version = tuple[int, int, int]
NEWEST, OLDEST = TGI.numbers, numbers(TGI.oldest)
MARLIN = (2, 2, 0)  # AWQ uses Marlin's kernels from here on, from compute capability 8.0 on


def parse_version(text: str) -> Version | None:
    """Major, minor and patch; None if the text is not a version."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def version(run: Run) -> Version:
    """The version that is modelled: the run's, at most the newest."""
    return min(NEWEST, parse_version(str(run.options["engine_version"])) or NEWEST)
