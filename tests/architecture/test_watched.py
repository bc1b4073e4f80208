"""The list of tests that run without coverage."""

from __future__ import annotations

from tests.watched import HERE, UNCOVERED, is_watched


def test_every_line_names_something() -> None:
    """A folder, a file, or a test in one."""
    for line in UNCOVERED:
        path, _, name = line.partition("::")
        assert (HERE / path).exists(), line
        assert not name or f"def {name}(" in (HERE / path).read_text("utf-8"), line


def test_what_is_watched() -> None:
    """Whatever is not listed; of cli, three files but for their tests in the list."""
    assert is_watched("tests/engines/test_new.py::test_a")
    assert not is_watched("tests/contract/test_one_verdict.py::test_a")
    assert not is_watched("tests/cli/test_quick.py::test_a")
    assert is_watched("tests/cli/test_infer.py::test_a")
    assert not is_watched("tests/cli/test_backtest.py::test_json_is_the_whole_report")
