"""What the measured runs in the repository have: for contracts that ask for a measured case."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.conftest import ROOT

FOLDERS = ("ground_truth", "new_runs")


@cache
def measured_runs() -> tuple[dict[str, Any], ...]:
    """The run files of all measured runs."""
    return tuple(_read())


def _read() -> Iterator[dict[str, Any]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line).get("config") or {}


def values(section: str, key: str, default: Any = None) -> set[Any]:
    """The values that a key of a section has in measured runs."""
    found = ((run.get(section) or {}).get(key, default) for run in measured_runs())
    return {json.dumps(one) if isinstance(one, dict | list) else one for one in found}
