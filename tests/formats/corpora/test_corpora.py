"""Every public configuration is read in full: each key is honoured, free or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus import sampled
from tests.formats.corpora.score import IN_FULL, outcome, rows

TOOLS = {"llamafactory": 10, "swift": 10}  # and how many of its files `make test` reads
CASES = [
    case
    for tool, keep in TOOLS.items()
    for case in sampled({row["source"]: row for row in rows(tool)}, keep)
]


@pytest.mark.parametrize("row", CASES)
def test_a_public_configuration_is_read_in_full(row: dict[str, Any]) -> None:
    """No key is unknown, and no value is wrong."""
    kind, why = outcome(row)
    assert kind in IN_FULL, why
