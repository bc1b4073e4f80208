"""Where a line folds, a text is shortened and a unit changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.estimates.serving.capacity import CapacityMatrix
from gpu_mem_calculator.lab.trace.diff import DiffSide
from gpu_mem_calculator.report import backtest, parts, tracing
from gpu_mem_calculator.report.lines import columns, command, count, plain, size
from gpu_mem_calculator.report.progress_bar import shorten
from gpu_mem_calculator.report.serving import long as serving_long


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (-1024, "-1.00 KiB"),
        (2**20 - 1, "1,024.00 KiB"),
        (2**20, "1.00 MiB"),
        (2**30 - 1, "1,024.00 MiB"),
        (2**40, "1,024.00 GiB"),
    ],
)
def test_a_unit_begins_at_one(number: int, text: str) -> None:
    """One byte less is in the next smaller unit."""
    assert size(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(1000, "1 K"), (10**6 - 1, "1000 K"), (10**6, "1 M"), (10**9, "1 B"), (10**12, "1 T")],
)
def test_a_suffix_begins_at_one(number: int, text: str) -> None:
    """The largest suffix whose figure is 1 or more."""
    assert count(number) == text


@pytest.mark.parametrize(
    ("label", "width", "rows"),
    [
        ("", 9, ["ab cdef"]),  # 2 + 1 + 4 columns, and 2 for a backslash
        ("", 8, ["ab \\", "  cdef"]),
        ("x: ", 12, ["x: ab cdef"]),
        ("x: ", 11, ["x: ab \\", "     cdef"]),
    ],
)
def test_a_command_folds_where_a_backslash_has_no_column(
    label: str, width: int, rows: list[str]
) -> None:
    """The label counts, too."""
    assert plain(command(label, ["ab", "cdef"], width)).splitlines() == rows


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["--set", "a=1", "b"], ["p \\", "  --set a=1 \\", "  b"]),
        (["--all", "--set", "a=1"], ["p \\", "  --all \\", "  --set a=1"]),
        (["--all", "-x"], ["p \\", "  --all \\", "  -x"]),
        (["a", "b"], ["p a \\", "  b"]),
    ],
)
def test_an_option_stays_with_its_value(words: list[str], rows: list[str]) -> None:
    """One value, which does not begin with a minus."""
    assert plain(command("", ["p", *words], 5)).splitlines() == rows


@pytest.mark.parametrize(("length", "end"), [(80, "x"), (81, "…"), (200, "…")])
def test_a_table_has_80_columns(length: int, end: str) -> None:
    """A longer row loses its end, and says so in the last column."""
    head, row = plain(columns(("a",), [("x" * length,)], set())).splitlines()
    assert (head, len(row), row[-2:]) == ("a", 80, f"x{end}")


def test_a_table_aligns_its_columns() -> None:
    """Two spaces between them, numbers to the right."""
    rows = plain(columns(("name", "n"), [("a", "100"), ("longer", "7")], {1})).splitlines()
    assert rows == ["name      n", "a       100", "longer    7"]


@pytest.mark.parametrize(("length", "end"), [(55, "xx"), (56, "x…")])
def test_a_traced_name_keeps_to_the_line(length: int, end: str) -> None:
    """25 columns are the label's and the figure's."""
    (row,) = plain(tracing._side("trace", [DiffSide("x" * length, 2**20, 1)])).splitlines()
    assert (len(row), row[-2:]) == (80, end)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (0.004, "0.00"),
        (-0.004, "0.00"),
        (0.01, "+0.01"),
        (-99.99, "-99.99"),
        (100.0, "+100"),
        (999.0, "+999"),
        (-1000.0, "-1e+03"),
    ],
)
def test_an_error_has_as_many_digits_as_its_column(error: float, text: str) -> None:
    """Two digits below 100 %, none below 1000 %."""
    assert backtest._signed(error) == text


@pytest.mark.parametrize(("width", "text"), [(5, "abcde"), (4, "abc…"), (1, "…")])
def test_a_name_is_shortened_to_its_column(width: int, text: str) -> None:
    """In a score and in a progress bar."""
    assert shorten("abcde", width) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "     -"),
        (1.001, "     -"),
        (1.0, "  100%"),
        (0.501, "   50%"),
        (0.01, "    1%"),
        (0.0099, "   <1%"),
    ],
)
def test_a_cell_is_a_share_or_a_dash(share: float | None, text: str) -> None:
    """What is more than the whole does not fit."""
    assert serving_long._cell(share, 6)[0] == text


@pytest.mark.parametrize(("share", "style"), [(0.5, "bold green"), (0.51, "yellow"), (2, "dim")])
def test_a_cell_up_to_half_is_good(share: float, style: str) -> None:
    """More is a warning; what does not fit is dim."""
    assert serving_long._cell(share, 6)[1] == style


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a" * 41], "a" * 41),
        (["a" * 42], "a" * 40 + "…"),
        (["a" * 20, "b" * 19], f"{'a' * 20}, {'b' * 19}"),
        (["a" * 20, "b" * 20], f"{'a' * 20}, …"),
        (["a", "b" * 40, "c"], "a, …"),
    ],
)
def test_names_of_a_server_leave_one_column_free(names: list[str], text: str) -> None:
    """42 columns are the text's; dots stand for the other names."""
    assert serving_long._names(names) == text


@pytest.mark.parametrize(
    ("start", "names", "shown"),
    [
        ([], ["a" * 41], ["a" * 41]),
        ([], ["a" * 42], ["a" * 40 + "…"]),
        ([], ["a" * 20, "b" * 19], ["a" * 20, "b" * 19]),
        ([], ["a" * 20, "b" * 20], ["a" * 20, "+ 1 smaller"]),
        ([], ["a" * 28, "b" * 12], ["a" * 28, "+ 1 smaller"]),
        ([], ["a" * 29, "b" * 12], ["a" * 29]),
        (["4 bytes"], ["a" * 32], ["4 bytes", "a" * 32]),
        (["4 bytes"], ["a" * 33], ["4 bytes"]),
        (["4 bytes"], ["a", "b" * 40], ["4 bytes", "a"]),
    ],
)
def test_names_of_a_part_fill_41_columns(
    start: list[str], names: list[str], shown: list[str]
) -> None:
    """The others are counted, where there is no figure before them and columns are left."""
    assert parts._fit_names(start, names) == shown


@pytest.mark.parametrize(
    ("name", "copies", "text"),
    [
        ("buckets", 1, "buckets"),
        ("buckets", 2, "2 × buckets"),
        ("dense layers: kept", 4, "4 dense layers: kept"),
        ("all dense layers: kept", 4, "4 × all dense layers: kept"),
        ("dense layers: kept for backward", 1, "saved by 1 layer for backward"),
        ("dense layers: kept for backward", 4, "saved by 4 layers for backward"),
        ("dense layers: kept for backward", 7, "saved by 4 layers × 2 micro-batches"),
    ],
)
def test_copies_are_layers_or_a_factor(name: str, copies: int, text: str) -> None:
    """One copy is not counted; copies of all layers are micro-batches."""
    stage = SimpleNamespace(num_layers=4)
    estimate: Any = SimpleNamespace(result=SimpleNamespace(stages=[stage], busiest_stage=0))
    assert parts._with_count(name, copies, estimate) == text


def test_the_capacity_table_shows_the_columns_that_fit() -> None:
    """10 columns for the context, 9 for the most, and 6 for each number: ten of eleven."""
    numbers = tuple(2**power for power in range(11))
    row = tuple(0.05 * power for power in range(11))
    matrix = CapacityMatrix(contexts=(1024,), concurrencies=numbers, shares=(row,), most=(77,))
    _, head, cells = plain(serving_long.matrix_lines(matrix, "share")).splitlines()
    assert head.split() == [*map(str, numbers[:10]), "most"]
    assert cells.split() == ["1,024", "<1%", *(f"{5 * n}%" for n in range(1, 10)), "77"]
    assert (len(head), len(cells)) == (79, 79)


@pytest.mark.parametrize(("length", "name"), [(15, "  " + "g" * 15), (16, "  " + "g" * 14 + "…")])
def test_a_group_leaves_a_column_before_its_figures(length: int, name: str) -> None:
    """18 columns are the group's, the last one blank."""
    text = plain([backtest._figures("  " + "g" * length, [("run", 1.0)])])
    assert text[:18] == name + " "
