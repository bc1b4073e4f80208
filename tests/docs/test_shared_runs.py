"""The table of users' runs is made of their rows."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

from tests.conftest import ROOT


def script() -> dict[str, Any]:
    """The functions of docs/shared_runs.py."""
    return runpy.run_path(str(ROOT / "docs" / "shared_runs.py"))


def test_the_page_has_the_table_as_it_is() -> None:
    """`python docs/shared_runs.py` would change nothing."""
    assert script()["page"]() == (ROOT / "docs" / "accuracy.md").read_text("utf-8")


def test_rows_are_scored_by_card(tmp_path: Path) -> None:
    """A row for each card, with the mean without signs and the worst error with its sign."""
    made = script()
    assert made["table"](tmp_path) == made["NONE"]
    lines = (ROOT / "tests/ground_truth/kept.jsonl").read_text("utf-8").splitlines()[:2]
    rows = [json.loads(line) for line in lines]
    rows[1]["environment"]["gpu"] = "NVIDIA L4"
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = made["table"](tmp_path).splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == ["| NVIDIA H200", "| NVIDIA L4"]
    assert all(line.split(" | ")[1] == "1" and " %, " in line for line in table[2:])
