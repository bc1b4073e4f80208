"""The house stays small: short files, short functions, no back rooms."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "gpu_mem_calculator"
FILES = sorted(SOURCE.rglob("*.py"))


def functions(path: Path) -> list[tuple[str, int]]:
    """Each function of a file and its number of lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (f"{path.name}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]


def test_units_are_in_one_place() -> None:
    """Only ledger/units.py knows how many bytes KiB, MiB and GiB have."""
    unit = re.compile(r"[*/] ?2\*\*[123]0\b|[KMG]IB\b[^=\n]*= ?2\*\*|1 << [123]0\b")
    others = [p for p in FILES if p != SOURCE / "ledger" / "units.py"]
    assert [p.name for p in others if unit.search(p.read_text(encoding="utf-8"))] == []


def test_no_file_is_longer_than_300_lines() -> None:
    """A file that grows past 300 lines is two things."""
    long = {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 300}
    assert not long


def test_nearly_all_functions_are_shorter_than_40_lines() -> None:
    """Ninety-five functions in a hundred fit on a screen."""
    sizes = [size for path in FILES for _, size in functions(path)]
    assert sum(size < 40 for size in sizes) / len(sizes) >= 0.95


def test_there_is_no_room_for_odds_and_ends() -> None:
    """Nothing is called utils, helpers, common, manager or base."""
    names = {path.stem for path in FILES}
    assert not names & {"utils", "helpers", "common", "misc", "manager", "base"}


def test_nothing_is_left_for_later() -> None:
    """No notes to self and nothing that is accepted but not there."""
    words = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    assert not [path.name for path in FILES if words.search(path.read_text(encoding="utf-8"))]


def test_starting_loads_nothing_heavy() -> None:
    """The base package and a small estimate import neither numpy nor torch nor yaml."""
    import subprocess
    import sys

    code = (
        "import sys; from gpu_mem_calculator import estimate; "
        "estimate({'model': {'name': 'gpt2'}}); "
        "print([m for m in ('numpy', 'torch', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NAMES = re.compile(r'\.name\.(starts|ends)with\(\(?"(later|first|startup|\.?(first|last|second))')


def test_no_code_reads_an_instants_name() -> None:
    """Step, micro-batch, moment and layer are fields; a name is for people."""
    assert not [path.name for path in FILES if NAMES.search(path.read_text(encoding="utf-8"))]
