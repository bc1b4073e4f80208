"""The public scripts: what was traced is what was chosen."""

from __future__ import annotations

import json
from pathlib import Path

from .public import CASES, FIGURES, HERE, chosen


def _rows() -> list[dict[str, object]]:
    text = Path(HERE / "scripts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_every_chosen_script_has_a_case_and_an_answer() -> None:
    """None is left out, whatever came of it."""
    ids = [row["id"] for row in chosen()]
    assert ids == list(CASES) == [row["id"] for row in _rows()]


def test_at_least_eight_give_a_number() -> None:
    """The others say in one sentence what stood in the way."""
    numbers = [row for row in _rows() if "allocated_bytes" in row]
    assert len(numbers) >= 8
    assert all(int(str(row[name])) > 0 for row in numbers for name in FIGURES)
    for row in _rows():
        assert ("refused" in row) != ("allocated_bytes" in row)
        assert "torch" in row["versions"]  # type: ignore[operator]
