"""Tables of tools that are not installed: their arguments, as they were listed from the source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.tools.translation.arguments import (
    FREE,
    MEMORY,
    REFUSED,
    argument_data,
    argument_table,
)
from gpu_mem_calculator.tools.translation.releases import arguments_at, release_lock
from gpu_mem_calculator.tools.translation.tools import TOOLS, start_problems

NAMES = Path(__file__).parent / "names"
STORED = {path.stem: json.loads(path.read_text()) for path in NAMES.glob("*.json")}


# Options that Megatron-LM adds where another package is installed.
CONDITIONAL = {"kitchen_config_file", "kitchen_recipe_number"}
# Megatron-LM needs these; argparse takes the zeros of a class that it makes options of.
DECIDED = {"megatron": dict.fromkeys(("num_layers", "hidden_size", "num_attention_heads"))}


def test_the_lists_say_where_they_are_from() -> None:
    """A commit of the tool, for the next person who lists them."""
    assert STORED.keys() == {"torchtitan", "megatron"}
    assert all(len(one["source"].split(", ")[1]) == 40 for one in STORED.values())


@pytest.mark.parametrize("tool", STORED)
def test_a_table_has_every_argument_with_its_default(tool: str) -> None:
    """And every argument that is not honoured says why; others are of other releases."""
    path = TOOLS[tool].arguments
    rows, defaults = argument_table(path), STORED[tool]["defaults"]
    here = arguments_at(path, argument_data(path)["release"])
    others = (release_lock(path).arguments.keys() - here.keys()) | CONDITIONAL
    assert rows.keys() - others == defaults.keys() - others
    own = {name: row.default for name, row in rows.items() if name in defaults}
    assert {**own, **DECIDED.get(tool, {})} == {**defaults, **DECIDED.get(tool, {})}
    for row in rows.values():
        assert row.effect in (MEMORY, FREE, REFUSED)
        assert row.why or row.effect == MEMORY


def test_trace_and_measure_say_that_they_cannot_start_these_tools() -> None:
    """They are not installed anywhere that either runs."""
    for tool in TOOLS:
        sentence = next(start_problems(tool), "")
        assert ("cannot be run here" in sentence) == (tool in STORED)
