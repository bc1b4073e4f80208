"""Probes say what ran, and change nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.architecture.coverage_floor import below_the_command_line, counted
from tests.probes import RAN, Probes, with_probes

CODE = '''"""A module."""
from __future__ import annotations

def ways(number):
    """A function."""
    if number:
        number += 1
    for one in range(number):
        if one == 2:
            break
    match number:
        case 2:
            return "two"
    try:
        return 1 // number
    except ZeroDivisionError:
        return "none"

def idle():
    return 1
'''


def ran(*numbers: int) -> tuple[Probes, list[int], dict[str, Any]]:
    """The probes of the code, which of them ran, and its names."""
    tree, probes = with_probes(CODE)
    names: dict[str, Any] = {RAN: [0] * len(probes.lines)}
    exec(compile(tree, "code", "exec"), names)
    for number in numbers:
        names["ways"](number)
    return probes, names[RAN], names


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [
        ((), {6, 7, 8, 9, 10, 11, 13, 14, 15, 17, 20}),
        ((0,), {7, 9, 10, 13, 20}),
        ((1,), {10, 14, 15, 17, 20}),
        ((0, 1, 3), {20}),
    ],
)
def test_missing_lines(numbers: tuple[int, ...], missing: set[int]) -> None:
    """Those of statements that did not run."""
    probes, hits, _ = ran(*numbers)
    assert {probes.lines[one] for one in probes.statements if not hits[one]} == missing


def test_ways_of_branches() -> None:
    """Two of each `if` and loop, one of each case and one where no case matches."""
    probes, hits, _ = ran()
    assert (len(probes.ways), sum(hits[one] for one in probes.ways)) == (8, 0)
    for numbers, reached in (((0,), 3), ((1,), 5), ((0, 1), 7), ((0, 1, 3), 8)):
        probes, hits, _ = ran(*numbers)
        assert sum(hits[one] for one in probes.ways) == reached, numbers


def test_code_is_the_same() -> None:
    """Its answers, docstrings and the lines that errors name."""
    _, _, names = ran()
    assert [names["ways"](number) for number in (0, 1, 4)] == ["none", "two", 0]
    assert (names["__doc__"], names["ways"].__doc__) == ("A module.", "A function.")
    assert names["idle"].__code__.co_firstlineno == 19


def test_what_needs_no_probe() -> None:
    """Excluded lines and what they hold, types, and stubs."""
    text = "import a\nif TYPE_CHECKING:\n    import b\nif a:  # pragma: no cover\n    a()\n...\n"
    _, probes = with_probes(text)
    assert [probes.lines[one] for one in probes.statements] == [1]
    assert not probes.ways


def test_file_that_nothing_imports(tmp_path: Path) -> None:
    """All its lines are missing; the command line's own files are not counted."""
    path = tmp_path / "one.py"
    path.write_text("a = 1\nif a:\n    a = 2\n")
    assert counted(path, None).missing == (1, 2, 3)
    assert counted(path, [1, 1, 0, 1]).missing == (3,)
    assert not [path for path in below_the_command_line() if "cli" in path.parts]
