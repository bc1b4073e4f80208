"""Public commands and manifests of servers are read in full, or refused with a known sentence.

A row with a `problem` is one that the tool itself refuses, or that starts nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.corpus import sampled
from tests.tools.corpora.score import IN_FULL, UNREAD, outcome, rows

# The corpora, and how many rows of each `make test` reads.
TOOLS = {"llamacpp": 10, "ollama": 10, "tgi": 10, "tensorrt_llm": 8, "manifests": 10}
LEAST_IN_FULL = 0.85
CASES = [
    case
    for tool, keep in TOOLS.items()
    for case in sampled({f"{row['source']} {i}": row for i, row in enumerate(rows(tool))}, keep)
]


@pytest.mark.parametrize("row", CASES)
def test_a_public_command_is_read(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No option is unknown, and no value is wrong, but where the row says so."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    kind, why = outcome(row)
    if "problem" in row:
        assert kind == UNREAD
        assert row["problem"] in why
    else:
        assert kind in IN_FULL, why


@pytest.mark.parametrize("tool", TOOLS)
def test_most_rows_are_read_in_full(tool: str) -> None:
    """At most 15 % of a corpus has a problem."""
    found = Counter("problem" in row for row in rows(tool))
    assert found[False] >= LEAST_IN_FULL * (found[True] + found[False])
