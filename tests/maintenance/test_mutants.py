"""The tool of mutation tests: what it changes, what it samples, and that a switch works."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from pathlib import Path

import pytest

from maintenance.mutants.__main__ import known_survivors
from maintenance.mutants.sites import SOURCE, Site, places, sample
from maintenance.mutants.switch import switched

CODE = '''
"""A docstring with 1 < 2."""
LIMIT: int = 8

def total(a: "1 + 1", b=3):
    """2 * 2"""
    if a < b and a != 0:
        a += 1
    return f"{a * b:>10}" + "x" * 0
'''


def changes(code: str) -> list[str]:
    """Each place before and after."""
    return [
        f"{ast.unparse(old)} -> {ast.unparse(new)}" for old, new, _ in places(ast.parse(code), True)
    ]


def test_operators_comparisons_and_numbers_are_changed() -> None:
    """Not annotations, docstrings, format specifications and sums of strings."""
    assert changes(CODE) == [
        "8 -> 9",
        "3 -> 4",
        "a < b and a != 0 -> a < b or a != 0",
        "a < b -> a <= b",
        "a != 0 -> a == 0",
        "0 -> 1",
        "a += 1 -> a -= 1",
        "1 -> 2",
        "a * b -> a // b",
        "0 -> 1",
    ]


def test_a_default_acts_at_import_and_a_body_does_not() -> None:
    """The first needs a new process."""
    at_import = [ast.unparse(old) for old, _, early in places(ast.parse(CODE), True) if early]
    assert at_import == ["8", "3"]


def test_the_sample_is_the_same_every_time_and_has_every_package() -> None:
    """Three of each at least, more of a larger one; here those whose names begin with r."""
    sites = sample(60, 1, "r*")
    assert sites == sample(60, 1, "r*")
    assert len(sites) >= 59
    counts = Counter(site.package for site in sites)
    assert set(counts) == {"report", "run", "runfile"}
    assert min(counts.values()) >= 3
    assert counts["report"] > counts["run"]
    assert sample(60, 2, "r*") != sites


def test_a_switch_changes_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others stay as they are."""
    path = tmp_path / "module.py"
    path.write_text("def area(a, b):\n    a += 2\n    return a * b - 1\n")
    texts = ["a += 2", "2", "a * b - 1", "a * b", "1"]
    sites = [Site(n + 1, "ledger/x.py", n, 1, "", text, "", False) for n, text in enumerate(texts)]
    results = {}
    for active in range(6):
        monkeypatch.setattr(builtins, "__mutant__", lambda n, on=active: n == on, raising=False)
        names: dict[str, object] = {}
        exec(switched(path, sites), names)
        results[active] = names["area"](6, 4)  # type: ignore[operator]
    assert results == {0: 31, 1: 15, 2: 39, 3: 33, 4: 1, 5: 30}


def test_known_survivors_are_in_the_source_with_a_reason() -> None:
    """A row whose line is gone is to be deleted."""
    for known in known_survivors():
        lines = [line.strip() for line in (SOURCE / known.path).read_text().splitlines()]
        assert known.line in lines, known
        assert len(known.why) > 20
