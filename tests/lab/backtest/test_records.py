"""Rows whose model a function made are predicted from that model's record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.backtest.score import backtest, predict_row
from tests.corpus import sampled

FILE = Path(__file__).parents[3] / "docs" / "gptlite" / "measured.jsonl"
ROWS = read_rows(FILE)


@pytest.mark.parametrize("count", sampled([6, 33], keep=1))
def test_gptlites_rows_are_scored(count: int) -> None:
    """Those that have a record, within half a percent, without torch."""
    recorded = [row for row in ROWS if row.record]
    report = backtest(recorded[:: len(recorded) // count])
    assert report.refused == ()
    errors = report.errors("allocated")
    assert len(errors) >= count
    assert {name: error for name, error in errors.items() if abs(error) > 0.5} == {}


def test_every_row_that_ended_has_a_record() -> None:
    """But for the one whose module makes its own checkpoints, which its run does not say."""
    without = [row.id for row in ROWS if not row.failed and row.record is None]
    assert without == ["zero3_bf16_checkpoint-12-b1"]


@pytest.mark.parametrize("text", [None, "[]", "{"], ids=["missing", "a list", "not JSON"])
def test_a_record_that_cannot_be_read(text: str | None, tmp_path: Path) -> None:
    """The row is refused with the file's name."""
    row: dict[str, Any] = {
        "id": "a",
        "group": "g",
        "config": {},
        "function": "m:f",
        "record": "own.json",
        "measured": {"allocated_bytes": 1},
    }
    runs = tmp_path / "runs.jsonl"
    runs.write_text(json.dumps(row))
    if text is not None:
        (tmp_path / "own.json").write_text(text)
    (read,) = read_rows(runs)
    said = predict_row(read, "estimate")
    assert isinstance(said, str)
    assert said.startswith(f"record {tmp_path / 'own.json'}: ")
