"""Sum up trials by group: `python -m maintenance.capped_trials.report OUT...`.

Waste is how much less than a cap the run would have survived in, of the bisected ones: the cap
against the least one, in percent of the least.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_mem_calculator.lab.measure.runs_file import died_of_memory
from gpu_mem_calculator.ledger.units import GIB

from .caps import WORDS, caps
from .trial import BISECTED

Row = Mapping[str, Any]
FULL = 2 * GIB  # with less free on the card, other processes may have caused the death


def read(paths: Iterable[str | Path]) -> list[Row]:
    """The last row of each case of these files."""
    rows: dict[str, Row] = {}
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["id"]] = row
    return list(rows.values())


def report(rows: Sequence[Row]) -> Iterator[str]:
    """The lines: a table for each cap, the waste, every death, and what was not tried."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["group"]].append(row)
    names = list(dict.fromkeys(o["name"] for row in rows for o in row["tries"]))
    shown = [name for name in names if name != BISECTED]
    yield f"{'group':20}{'cases':>6}" + "".join(f"{name:>16}" for name in shown)
    for group, members in (*groups.items(), ("all", list(rows))):
        counts = "".join(f"{survived(members, name):>16}" for name in shown)
        yield f"{group:20}{len(members):6}{counts}"
    yield ""
    yield from _wastes(groups, rows)
    yield ""
    yield from _deaths(rows)
    yield from _stopped(rows)


def survived(rows: Sequence[Row], name: str) -> str:
    """How many of the runs under this cap survived."""
    tries = [one for row in rows for one in row["tries"] if one["name"] == name]
    judged = [one for one in tries if one["survived"] or died_of_memory(one)]
    return f"{sum(one['survived'] for one in judged)} of {len(judged)}"


def waste_pct(row: Row, name: str) -> float | None:
    """How far a cap is above the least one, in percent; None where it was not bisected."""
    cap = caps([name], row["prediction"]).get(name) if "survives_in_bytes" in row else None
    return None if cap is None else 100 * (cap / row["survives_in_bytes"] - 1)


def _wastes(groups: Mapping[str, list[Row]], rows: Sequence[Row]) -> Iterator[str]:
    yield "above the least cap, in percent: mean, lowest, highest (below 0: the cap is too low)"
    for group, members in (*groups.items(), ("all", list(rows))):
        for name in ("needs", "needs+margin", "reserved"):
            found = [waste for row in members if (waste := waste_pct(row, name)) is not None]
            if found:
                figures = f"{statistics.mean(found):+8.2f}{min(found):+8.2f}{max(found):+8.2f}"
                yield f"  {group:20}{name:14}{len(found):4}{figures}"


def _deaths(rows: Sequence[Row]) -> Iterator[str]:
    """Every try at a predicted cap that died, with its phase."""
    died = [(row, o) for row in rows for o in row["tries"] if o["name"] in WORDS]
    died = [(row, one) for row, one in died if not one["survived"]]
    yield f"{len(died)} died:"
    for row, one in sorted(died, key=lambda pair: (pair[1]["name"], pair[0]["group"])):
        cap = one["cap_bytes"]
        least = row.get("survives_in_bytes")
        text = f"  {row['id']:44} {one['name']:13} {cap / GIB:7.2f} GiB in {one['phase'] or '?'}"
        text += f", {one.get('retries', '?')} retries"
        if least:
            text += f", survives in {100 * (least / cap - 1):+.2f} %"
        if one.get("free_bytes", FULL) < FULL:
            text += "; the card was full"
        yield text if died_of_memory(one) else f"{text}: {one['why'][:160]}"


def _stopped(rows: Sequence[Row]) -> Iterator[str]:
    stopped = [row for row in rows if "stopped" in row]
    if stopped:
        yield ""
        yield f"{len(stopped)} stopped before their last try:"
    for row in stopped:
        yield f"  {row['id']:44} {row['stopped'][:200]}"


if __name__ == "__main__":
    print("\n".join(report(read(sys.argv[1:]))))
