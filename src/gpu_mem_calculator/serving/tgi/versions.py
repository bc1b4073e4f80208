"""Which TGI it is, and what each version has by default: room, attention, lengths, prompt tokens.

Files are those of text-generation-inference 3.3.7.
"""

from __future__ import annotations

import re

from ...run.run import Run

Version = tuple[int, int, int]
NEWEST, OLDEST = (3, 3, 7), (1, 4, 0)
MARLIN = (2, 2, 0)  # AWQ is multiplied by Marlin since, from capability 8.0 on


def parse_version(text: str) -> Version | None:
    """Major, minor and patch; None where it is no version."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def version(run: Run) -> Version:
    """The version that is modelled for it."""
    return min(NEWEST, parse_version(str(run.options["engine_version"])) or NEWEST)
