"""The drawn rows are what `draw` draws, and the measured ones are in the file of their number."""

from __future__ import annotations

import json

import pytest

from .draw import HERE, drawn
from .models import Row

DRAWN = dict(drawn())


def read(file: str) -> list[Row]:
    """The rows of a file."""
    return [json.loads(line) for line in (HERE / file).read_text().splitlines()]


@pytest.mark.parametrize("file", DRAWN)
def test_drawn_rows(file: str) -> None:
    """Nothing was changed by hand."""
    assert read(file) == DRAWN[file]
    assert len({row["id"] for row in DRAWN[file]}) == len(DRAWN[file])


@pytest.mark.parametrize("kind", ["lives", "lengths"])
@pytest.mark.parametrize("side", ["seen", "unseen"])
def test_measured_rows(kind: str, side: str) -> None:
    """Odd numbers are seen; the run is the drawn one, and nothing had to be allocated again."""
    known = {row["id"]: row for row in DRAWN[f"drawn_{kind}.jsonl"]}
    rows = read(f"{kind}_{side}.jsonl")
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        origin = known[row["id"].removesuffix("-resumed")]
        assert row["number"] % 2 == (side == "seen")
        assert row["config"]["model"] == origin["config"]["model"]
        assert row["measured"].get("alloc_retries", 0) == 0
        marks = [phase["host"]["VmHWM"] for phase in row["phases"].values()]
        assert marks == sorted(marks)
        assert len(row["measured"].get("steps", ())) in (0, 100)
