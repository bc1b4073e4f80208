"""The house stays small: short files, short functions, no back rooms."""

from __future__ import annotations

import re

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "gpu_mem_calculator"
FILES = sorted(SOURCE.rglob("*.py"))


def test_units_are_in_one_place() -> None:
    """Only ledger/units.py knows how many bytes KiB, MiB and GiB have."""
    unit = re.compile(r"[*/] ?2\*\*[123]0\b|[KMG]IB\b[^=\n]*= ?2\*\*|1 << [123]0\b")
    others = [p for p in FILES if p != SOURCE / "ledger" / "units.py"]
    assert [p.name for p in others if unit.search(p.read_text(encoding="utf-8"))] == []


def test_no_file_is_longer_than_400_lines() -> None:
    """A file that grows past 400 lines is two things."""
    long = {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long


ODDS_AND_ENDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base", "lib"}


def test_there_is_no_module_for_odds_and_ends() -> None:
    """No word of a file's or a folder's name is utils, helpers, common, misc, manager or base."""
    paths = [path.relative_to(SOURCE).with_suffix("") for path in FILES]
    words = {path: {w for part in path.parts for w in part.split("_")} for path in paths}
    assert [path for path in paths if words[path] & ODDS_AND_ENDS] == []


def test_nothing_is_left_for_later() -> None:
    """No notes to self, no error for what is not written, no sentence that promises."""
    words = re.compile(
        r"\b(TODO|FIXME|XXX|HACK|NotImplementedError|NotMade\w*)\b|coming soon|in a later version"
        r"|not (made|written|done|supported|modelled|implemented) yet"
    )
    assert not [path.name for path in FILES if words.search(path.read_text(encoding="utf-8"))]


def test_the_formatter_is_on_everywhere() -> None:
    """No file switches it off, so that 400 lines are 400 lines."""
    off = re.compile(r"#\s*fmt:\s*(skip|off)")
    files = [
        p for folder in ("src", "tests", "tools", "docs") for p in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 500
    assert [p.name for p in files if off.search(p.read_text(encoding="utf-8"))] == []


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
