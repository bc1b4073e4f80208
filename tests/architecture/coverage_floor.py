"""Everything below the command line is covered to 95 % of its lines (run after the tests), but for
what runs elsewhere.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import coverage

FLOOR = 95.0
# Code that no test of `make test` can reach in its own process: it needs a GPU, a package that is
# not installed there, or a process of its own; `make proof` and measured runs exercise it.
ELSEWHERE = (
    *("jobs/megatron.py", "jobs/quantized.py", "jobs/program_trl.py", "jobs/program_lightning.py"),
    *("trace/compiled.py", "trace/inductor.py", "measure/torchrun.py"),
    *("script/hub_datasets.py", "script/hub_tokenizers.py", "script/hub_models.py"),
)

OMITTED = ["*/gpu_mem_calculator/cli/*", *(f"*/gpu_mem_calculator/{path}" for path in ELSEWHERE)]


def main() -> int:
    """Print what is covered below the CLI; fail when lines are under the floor."""
    data = coverage.Coverage()
    data.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        data.json_report(outfile=str(report), omit=OMITTED)
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
