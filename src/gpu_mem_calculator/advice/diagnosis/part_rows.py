"""The rows of parts.toml, and from which difference on a part is evidence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from ...catalog.kept import read_table
from ...ledger.units import MIB

LEAST_BYTES = 64 * MIB  # no difference below it is evidence: logs print two digits of a GiB


@cache
def part_rows(kind: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of parts.toml."""
    table = read_table(os.path.join(os.path.dirname(__file__), "parts.toml"))
    return tuple(table[kind])


def differs(printed: int, estimated: int, percent: float) -> bool:
    """Whether a figure is further from the estimate than its error."""
    least = max(abs(printed) * percent / 100, LEAST_BYTES)
    return abs(printed - estimated) > least
