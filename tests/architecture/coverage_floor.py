"""Everything below the command line is covered to 95 % of its lines (run after the tests), but for
what runs elsewhere.

`python -m tests.architecture.coverage_floor FOLDER [--missing]`: the second lists what is missing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.probes import SOURCE, read, with_probes

FLOOR = 95.0
# Code that no test of `make test` can reach in its own process: it needs a GPU, a package that is
# not installed there, or a process of its own; `make proof` and measured runs exercise it.
ELSEWHERE = (
    *(
        "lab/jobs/megatron.py",
        "lab/jobs/quantized.py",
        "lab/jobs/program.py",
        "lab/jobs/program.py",
    ),
    *("lab/trace/compiled.py", "lab/trace/compiled.py", "lab/measure/torchrun.py"),
    *("lab/script/libraries.py", "lab/script/libraries.py", "lab/script/hub_models.py"),
)


@dataclass
class Counted:
    """What the tests reach of one file or of all."""

    lines: int = 0
    missing: tuple[int, ...] = ()
    ways: int = 0
    ways_reached: int = 0

    def __add__(self, other: Counted) -> Counted:
        missing = self.missing + other.missing
        ways, reached = self.ways + other.ways, self.ways_reached + other.ways_reached
        return Counted(self.lines + other.lines, missing, ways, reached)


def counted(path: Path, ran: list[int] | None) -> Counted:
    """One file's lines and branches; none is reached where no test imported it."""
    _, probes = with_probes(path.read_text("utf-8"))
    ran = ran or [0] * len(probes.lines)
    missing = tuple(probes.lines[one] for one in probes.statements if not ran[one])
    reached = sum(map(bool, (ran[one] for one in probes.ways)))
    return Counted(len(probes.statements), missing, len(probes.ways), reached)


def below_the_command_line() -> list[Path]:
    """The files that count."""
    apart = {SOURCE / path for path in ELSEWHERE}
    files = sorted(SOURCE.rglob("*.py"))
    return [path for path in files if SOURCE / "cli" not in path.parents and path not in apart]


def main(words: list[str]) -> int:
    """Print what is covered below the CLI; fail when lines are under the floor."""
    ran = read(Path(words[0]))
    files = {path: counted(path, ran.get(str(path))) for path in below_the_command_line()}
    if "--missing" in words:
        for path, one in sorted(files.items(), key=lambda item: len(item[1].missing)):
            if one.missing:
                print(len(one.missing), path.relative_to(SOURCE), *one.missing)
    total = sum(files.values(), Counted())
    lines = 100 - 100 * len(total.missing) / total.lines
    print(
        f"coverage below the command line: {lines:.1f} % of {total.lines} lines "
        f"(floor {FLOOR:g} %), {100 * total.ways_reached / total.ways:.1f} % of {total.ways} "
        "ways that branches go"
    )
    return int(lines < FLOOR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
