"""Trials under a cap: how many runs survived in exactly the memory that was predicted."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from statistics import mean
from typing import Any

from scores import ROOT

TRIALS = ROOT / "tests" / "capped_runs" / "trials.jsonl"
HEAD = ["", "runs", "survived in needs", "in needs + margin", "waste, mean", "worst"]
Trials = list[dict[str, Any]]
SETS = {
    "second": "second draw, before any was run; predicted and run once, by version 0.9.0",
    "drawn": "first draw, before any was run; predicted and run once, by version 0.8.0",
    "seen": "measured before and used in development",
}


@cache
def trials() -> Trials:
    """Every trial."""
    return [json.loads(line) for line in TRIALS.read_text(encoding="utf-8").splitlines()]


def drawn() -> Trials:
    """The trials of the newest draw, predicted and run once."""
    return [trial for trial in trials() if trial["set"] == next(iter(SETS))]


def rows() -> list[list[str]]:
    """A row for each group of each set, and one for the whole set."""
    found: dict[tuple[str, str], Trials] = defaultdict(list)
    for trial in trials():
        found[trial["set"], ""].append(trial)
        found[trial["set"], trial["group"]].append(trial)
    order = sorted(found, key=lambda key: (list(SETS).index(key[0]), key[1]))
    return [_row(group or f"**{SETS[name]}**", found[name, group]) for name, group in order]


def _row(title: str, trials: Trials) -> list[str]:
    lived = [survived(trials, name) for name in ("needs", "needs+margin")]
    bisected = [trial for trial in trials if "survives_in_bytes" in trial]
    wastes = [_waste(trial) for trial in bisected if survived([trial], "needs+margin") != "-"]
    figures = [f"{mean(wastes):+.2f} %", f"{max(wastes):+.2f} %"] if wastes else ["-", "-"]
    return [title, str(len(trials)), *lived, *figures]


def survived(trials: Trials, name: str) -> str:
    """How many runs survived under the cap of that name."""
    tried = [t["survived"] for trial in trials for t in trial["tries"] if t["name"] == name]
    return f"{sum(tried)} of {len(tried)}" if tried else "-"


def _waste(trial: dict[str, Any]) -> float:
    """By how many percent needs + margin exceeds the least cap that survived."""
    predicted, least = trial["prediction"], trial["survives_in_bytes"]
    return 100 * ((predicted["needs_bytes"] + (predicted["margin_bytes"] or 0)) / least - 1)
