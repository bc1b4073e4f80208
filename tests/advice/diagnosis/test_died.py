"""The runs that were made to die: each has its truth, in the words of README.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator import estimate
from tests.advice.diagnosis import draw_died, draw_died_2
from tests.advice.diagnosis.score import SETS, rows
from tests.corpus import sampled

HERE = Path(__file__).parent


def _rows(name: str) -> list[dict[str, Any]]:
    with (HERE / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


DRAWN = {"died": draw_died.cases(), "died_2": draw_died_2.cases()}
DIED = {name: _rows(f"{name}.jsonl") for name in DRAWN}
TRUTH = {name: {row["id"]: row for row in _rows(f"{name}_truth.jsonl")} for name in DRAWN}


@pytest.mark.parametrize("name", DRAWN)
def test_every_run_has_its_truth_and_was_drawn(name: str) -> None:
    """The two files and the draw go together."""
    assert [row["id"] for row in DIED[name]] == list(TRUTH[name])
    drawn = {row["id"]: row for row in DRAWN[name]}
    assert _rows(f"{name}_draw.jsonl") == list(drawn.values())
    assert all(row["config"] == drawn[row["id"]]["config"] for row in DIED[name])


@pytest.mark.parametrize("name", DRAWN)
def test_the_words_are_explained(name: str) -> None:
    """README.md has each phase, tensor and cause that the public cases do not have."""
    words = set(re.findall(r"`([^`]+)`", (HERE / "README.md").read_text(encoding="utf-8")))
    words |= {row["cause_word"] for row in _rows("public_cases.jsonl")}
    for key in ("phase", "tensor", "cause_word"):
        assert {row[key] for row in TRUTH[name].values()} <= words, key


@pytest.mark.parametrize(
    "row", [*DIED["died"][::8], *DIED["died_2"][::6]], ids=lambda row: str(row["id"])
)
def test_a_run_file_goes_with_each(row: dict[str, Any]) -> None:
    """Its need can be estimated."""
    assert estimate(row["config"]).allocated_bytes > 0


# Right of all, by file: a set may not fall below its count. `score.py` prints the misses. The first
# and the last are the newest of their kind.
LEVELS = {
    "died_2": {"phase": 60, "tensor": 60},
    "died": {"phase": 48, "tensor": 48},
    "public_cases": {"cause": 43, "figures": 271},
    "public_cases_2": {"cause": 42, "figures": 357},
    "public_cases_3": {"cause": 30, "figures": 228},
}


@pytest.mark.parametrize("name", sampled(LEVELS.keys(), keep=2))
def test_no_set_falls_below_its_level(name: str) -> None:
    """Nor is any wrong cause called certain."""
    cases = rows(name)
    wrong = {what: len(found) for what, found in SETS[name](cases, name).items()}
    figures = sum(len(row.get("figures", ())) for row in cases)
    for what, level in LEVELS[name].items():
        count = figures if what == "figures" else len(cases)
        assert count - wrong[what] >= level, what
    assert not wrong["certain and wrong"]
