"""Writes the table of users' runs in accuracy.md: python docs/shared_runs.py.

The rows are those of docs/shared/*.jsonl, which `backtest --share` wrote; one row of the table for
each card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_mem_calculator.lab.backtest.rows import parse_rows
from gpu_mem_calculator.lab.backtest.score import backtest

ROOT = Path(__file__).parent.parent
FOLDER, PAGE = ROOT / "docs" / "shared", ROOT / "docs" / "accuracy.md"
NONE = "Nobody has sent a run yet. All figures of this page are of our own runs."
METRICS = {
    "allocated": "allocated",
    "reserved": "reserved",
    "device": "nvidia-smi",
    "kv_pool": "KV pool",
}


def errors(folder: Path = FOLDER) -> dict[str, dict[str, list[float]]]:
    """The errors of each figure in per cent, by card."""
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        text = path.read_text("utf-8")
        cards = {
            row["id"]: (row.get("environment") or {}).get("gpu")
            or (row["config"].get("hardware") or {}).get("gpu", "not stated")
            for row in map(json.loads, filter(str.strip, text.splitlines()))
        }
        for row in backtest(parse_rows(text, str(path))).rows:
            for name in METRICS:
                one = row.metrics.get(name)
                if one is not None and one.error_pct is not None:
                    found.setdefault(cards[row.id], {}).setdefault(name, []).append(one.error_pct)
    return found


def table(folder: Path = FOLDER) -> str:
    """The table, or that there is nothing to show."""
    found = errors(folder)
    return "\n".join(_rows(found)) if found else NONE


def _rows(found: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    yield "| card | runs | " + " | ".join(f"{one}: mean, worst" for one in METRICS.values()) + " |"
    yield "|---|---|" + "---|" * len(METRICS)
    for card, by_name in sorted(found.items()):
        runs = max(map(len, by_name.values()))
        cells = (_cell(by_name.get(one, ())) for one in METRICS)
        yield f"| {card} | {runs} | {' | '.join(cells)} |"


def _cell(figures: Sequence[float]) -> str:
    if not figures:
        return "-"
    mean = sum(map(abs, figures)) / len(figures)
    return f"{mean:.2f} %, {max(figures, key=abs):+.2f} %"


def page() -> str:
    """accuracy.md with the table as it is now."""
    body = f"<!-- shared -->\n{table()}\n<!-- end -->"
    old = PAGE.read_text("utf-8")
    return re.sub(r"<!-- shared -->.*?<!-- end -->", lambda _: body, old, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
