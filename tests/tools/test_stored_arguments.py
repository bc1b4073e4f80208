"""Tables of tools that are not installed: their arguments, as they were listed from the source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.tools.translation.arguments import FREE, MEMORY, REFUSED, argument_table
from gpu_mem_calculator.tools.translation.tools import TOOLS, start_problems

NAMES = Path(__file__).parent / "names"
STORED = {path.stem: json.loads(path.read_text()) for path in NAMES.glob("*.json")}


def test_the_lists_say_where_they_are_from() -> None:
    """A commit of the tool, for the next person who lists them."""
    assert STORED.keys() == {"torchtitan", "megatron"}
    assert all(len(one["source"].split(", ")[1]) == 40 for one in STORED.values())


@pytest.mark.parametrize("tool", STORED)
def test_a_table_has_every_argument_with_its_default(tool: str) -> None:
    """And every argument that is not honoured says why."""
    rows = argument_table(TOOLS[tool].arguments)
    defaults = STORED[tool]["defaults"]
    assert rows.keys() == defaults.keys()
    assert {name: row.default for name, row in rows.items()} == defaults
    for row in rows.values():
        assert row.effect in (MEMORY, FREE, REFUSED)
        assert row.why or row.effect == MEMORY


def test_trace_and_measure_say_that_they_cannot_start_these_tools() -> None:
    """They are not installed anywhere that either runs."""
    for tool in TOOLS:
        sentence = next(start_problems(tool), "")
        assert ("cannot be run here" in sentence) == (tool in STORED)
