"""Everything below the command line is covered to 95 % of its lines (run after the tests)."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import coverage

FLOOR = 95.0


def main() -> int:
    """Print what is covered below the CLI; fail when lines are under the floor."""
    data = coverage.Coverage()
    data.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        data.json_report(outfile=str(report), omit=["*/gpu_mem_calculator/cli/*"])
        totals = json.loads(report.read_text("utf-8"))["totals"]
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    branches = 100 * totals["covered_branches"] / totals["num_branches"]
    print(
        f"coverage below the command line: {lines:.1f} % of {totals['num_statements']} lines "
        f"(floor {FLOOR:g} %), {branches:.1f} % of {totals['num_branches']} branches"
    )
    return int(lines < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
