"""Axolotl's own examples: all are read, and most of those whose model is known are answered."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.corpus import sampled
from tests.tools.corpora.score import IN_FULL, UNREAD, outcome, read_row, rows

ROWS = rows("axolotl")
# Examples that have a wrong key themselves.
MISSPELT = ("examples/gemma4/31b-qlora-flex.yaml", "examples/falcon-h1/falcon-h1-1b-qlora-cp.yaml")


@pytest.mark.parametrize("row", sampled({row["source"]: row for row in ROWS}, 10))
def test_an_example_is_read(row: dict) -> None:  # type: ignore[type-arg]
    """Every key is classified."""
    reading = read_row(row)
    if not row["source"].endswith(MISSPELT):
        assert not reading.problems
        assert set(row["data"]) <= set(reading.keys)


@pytest.mark.proof
def test_the_share_that_is_read_and_answered() -> None:
    """At least 85 % in full; `python -m tests.tools.corpora.score axolotl` prints the table."""
    found = Counter(outcome(row)[0] for row in ROWS)
    assert sum(found[kind] for kind in IN_FULL) >= 0.99 * len(ROWS)
    assert found[UNREAD] <= 1
    assert found["answered"] + found["with a limit"] >= 120
