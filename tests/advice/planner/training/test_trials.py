"""First choices of the planner, run as rank 0 on an H200 under the cap of the card asked for.

`python -m maintenance.plan_trials` wrote the cases before any was run; `python -m
maintenance.capped_trials
--tries card` ran them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TRIALS = [
    json.loads(line)
    for line in Path(__file__).with_name("trials.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("row", TRIALS, ids=lambda row: row["id"])
def test_no_first_choice_dies(row: dict[str, Any]) -> None:
    """It survives under what its card leaves torch, and allocates what was predicted, or less: a
    V100 has no flash attention, and the H200 that played it has.
    """
    (trial,) = row["tries"]
    assert trial["cap_bytes"] == row["prediction"]["card_bytes"]
    assert trial["survived"]
    ratio = trial["allocated_bytes"] / row["prediction"]["allocated_bytes"]
    assert 0.96 < ratio < 1.005
