"""What the value of an argument must be: by the type that a lock states, or by the default."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.tools.translation.arguments import argument_table
from gpu_mem_calculator.tools.translation.kinds import (
    NAMES,
    NUMBER,
    OBJECT,
    TEXT,
    TRUTH,
    WHOLE,
    converts,
    fits,
    kind_of,
)


@pytest.mark.parametrize(
    ("type_", "default", "kind"),
    [
        ("bool | None", None, TRUTH),
        ("int | None", None, WHOLE),
        ("float", 0, NUMBER),
        ("int | float", 1, NUMBER),
        ("str", "a", TEXT),
        ("list | None", None, NAMES),
        ("int | str | None", "auto", ""),
        ("", 8, WHOLE),
        ("", 0.5, NUMBER),
        ("", None, ""),
    ],
)
def test_the_kind_is_that_of_the_type(type_: str, default: Any, kind: str) -> None:
    """Else of the default; several kinds are none."""
    assert kind_of("name", type_, default) == kind
    assert kind_of("model_init_kwargs", type_, default) == OBJECT


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (TRUTH, [True], [1, "true", None]),
        (WHOLE, [0, 7], [-1, 1.5, True, "7", 10**13]),
        (NUMBER, [0.5, 3], [float("nan"), "1", False]),
        (TEXT, ["a"], [1, ["a"]]),
        (NAMES, ["a", ["a", "b"]], [1, [1]]),
        (OBJECT, [{}], ["{}", []]),
        ("", [1, "a", None, [1]], []),
    ],
)
def test_a_value_is_of_its_kind(kind: str, good: list[Any], bad: list[Any]) -> None:
    """A whole number is not negative, unless its sign says something."""
    assert all(fits(kind, one) for one in good)
    assert not any(fits(kind, one) for one in bad)
    assert fits(WHOLE, -1, signed=True)


def test_a_tool_converts_values() -> None:
    """A text for a bool, nothing for a number; but no list."""
    assert all(converts(TRUTH, one) for one in (True, 1, "yes", None))
    assert all(converts(WHOLE, one) for one in (1, 2.0, None))
    assert not any(converts(WHOLE, one) for one in ("1", [1]))


def test_types_are_those_of_the_modelled_release() -> None:
    """An argument without a default has a kind, too."""
    table = argument_table("trl/grpo")
    assert kind_of("bf16", table["bf16"].type, table["bf16"].default) == TRUTH
    assert table["generation_batch_size"].type == "int | None"
    assert argument_table("trl/sft")["pad_to_multiple_of"].type == "int | str | None"
