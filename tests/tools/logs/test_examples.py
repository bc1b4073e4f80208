"""Every line that is known is read from its examples, with every figure."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_mem_calculator.tools.logs.figure import Figure, number, size
from gpu_mem_calculator.tools.logs.read import read_log, tables

KEYS = {
    "what",
    "words",
    "pattern",
    "more",
    "reach",
    "anywhere",
    "alone",
    "decimal",
    "source",
    "examples",
}
ROWS = [(tool, row) for tool, table in tables() for row in table["line"]]
EXAMPLES = [(tool, row, one) for tool, row in ROWS for one in row["examples"]]
SIZE = re.compile(r"(-?[\d.,]+) ?([A-Za-z]+)")


def _expected(row: dict[str, Any], figures: dict[str, str]) -> dict[str, Figure | str]:
    kinds = {
        name: kind
        for pattern in (row["pattern"], *row.get("more", ()))
        for name, kind in re.findall(r"\{(\w+):(\w+)\}", pattern)
    }
    found: dict[str, Figure | str] = {}
    for name, printed in figures.items():
        kind = kinds[name]
        if kind in ("size", "gib", "mib", "bytes"):
            value = SIZE.fullmatch(printed)
            assert value, printed
            found[f"{name}_bytes"] = size(*value.groups(), decimal=row.get("decimal", False))
        else:
            found[name] = printed if kind in ("word", "text") else number(printed)
    return found


@pytest.mark.parametrize(("tool", "row", "example"), EXAMPLES)
def test_an_example_is_read(tool: str, row: dict[str, Any], example: dict[str, Any]) -> None:
    """What it says, and each figure to the printed digit."""
    found = [one for one in read_log(example["text"]).lines if one.what == row["what"]]
    assert found, example["text"]
    assert found[0].tool == tool
    assert found[0].figures == _expected(row, example["figures"])


@pytest.mark.parametrize(("tool", "row"), ROWS)
def test_a_row_says_where_it_is_printed(tool: str, row: dict[str, Any]) -> None:
    """By its source and an example; it has no key that nobody reads."""
    assert row.keys() <= KEYS
    assert row["source"], tool
    assert row["examples"], tool


def test_lines_have_their_numbers_and_one_wording() -> None:
    """Colours, carriage returns and prefixes of ranks do not matter."""
    [example] = [one for _, row, one in EXAMPLES if row["what"] == "torch_oom"][:1]
    text = f"lap 1\r\nlap 2\r\x1b[31m[rank3]: {example['text']}\x1b[0m\n"
    [found] = read_log(text).lines
    assert found.line == 3
    assert found.bytes_of("tried") == size("14.90", "GiB").value


def test_the_middle_of_a_long_text_is_read_for_what_can_tell_a_cause() -> None:
    """And how much was not read for all is said."""
    [example] = [one for _, row, one in EXAMPLES if row["what"] == "torch_oom"][:1]
    steps = "lap 1 loss 2.01\n" * 400_000
    found = read_log(f"{steps}{example['text']}\n{steps}")
    assert [one.line for one in found.lines] == [400_001]
    assert found.left_out["characters"] > 0


def test_a_text_that_says_nothing_of_memory_has_no_lines() -> None:
    """Nor does an empty one."""
    assert read_log("").lines == read_log("hello\n").lines == ()


@pytest.mark.parametrize("units", [True, False])
def test_a_csv_of_nvidia_smi_is_read_by_its_names(units: bool) -> None:
    """With units in each cell, and with those of the head alone."""
    unit = " MiB" if units else ""
    text = f"""index, name, memory.total [MiB], memory.used [MiB]
0, NVIDIA H100 80GB HBM3, 81559{unit}, 79012{unit}
1, NVIDIA H100 80GB HBM3, 81559{unit}, 12{unit}

pid, process_name, used_gpu_memory [MiB]
4711, /usr/bin/python3, 78990{unit}
"""
    first, second, process = read_log(text).lines
    assert (first.line, second.line, process.line) == (2, 3, 6)
    assert first.what == second.what == "card_used"
    assert first.bytes_of("used") == 79012 * 2**20
    assert second.figures["card"] == "NVIDIA H100 80GB HBM3"
    assert (process.what, process.figures["pid"]) == ("card_process", "4711")
    assert process.bytes_of("used") == 78990 * 2**20
