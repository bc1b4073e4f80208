"""Writes the table of releases.md: which releases of each tool are known, and how many arguments.

python docs/releases.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpu_mem_calculator.tools.translation.arguments import FOLDER  # noqa: E402
from gpu_mem_calculator.tools.translation.releases import release_lock  # noqa: E402

PAGE = ROOT / "docs" / "releases.md"


def table() -> str:
    """A row for each package: its releases, the first and the last with their dates, arguments."""
    rows: dict[str, tuple[dict[str, str], int]] = {}
    for path in sorted(FOLDER.glob("*/*.lock.json")):
        lock = release_lock(path.relative_to(FOLDER).as_posix().removesuffix(".lock.json"))
        dates, count = rows.get(lock.package, ({}, 0))
        rows[lock.package] = ({**dates, **lock.releases}, count + len(lock.arguments))
    lines = ["| package | releases | from | to | arguments |", "|---|--:|---|---|--:|"]
    for name, (dates, count) in sorted(rows.items()):
        days = sorted((day, release) for release, day in dates.items())
        (old_day, oldest), (new_day, newest) = days[0], days[-1]
        span = f"{oldest} ({old_day}) | {newest} ({new_day})"
        lines.append(f"| {name} | {len(dates)} | {span} | {count:,} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """The page with today's table."""
    start, end = "<!-- locks -->\n", "\n<!-- end -->"
    before, _, rest = text.partition(start)
    return f"{before}{start}{table()}{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
