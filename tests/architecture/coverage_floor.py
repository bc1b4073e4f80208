"""Everything below the command line is covered to 95 % of its lines (run after the tests)."""

from __future__ import annotations

import sys
from pathlib import Path

import coverage

FLOOR = 95.0


def main() -> int:
    """Print the coverage below the CLI; fail when it is under the floor."""
    data = coverage.Coverage()
    data.load()
    source = Path(__file__).parents[2] / "src" / "gpu_mem_calculator"
    total = missed = 0
    for path in sorted(source.rglob("*.py")):
        if "cli" not in path.relative_to(source).parts:
            _, lines, _, missing, _ = data.analysis2(str(path))
            total, missed = total + len(lines), missed + len(missing)
    percent = 100 * (1 - missed / total)
    print(f"coverage below the command line: {percent:.1f} % of {total} lines (floor {FLOOR:g} %)")
    return int(percent < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
