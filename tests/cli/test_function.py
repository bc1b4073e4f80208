"""--with: what a command line gives to a user's function."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.cli.function import named_values, scalar
from gpu_mem_calculator.runfile.text.errors import InputError

from .conftest import Command


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24", 24),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ("abc", "abc"),
        ('"24"', "24"),
        ("", ""),
        ("[1]", "[1]"),
        ("NaN", "NaN"),
        ("a=b", "a=b"),
        ("024", "024"),
    ],
)
def test_values_are_json_or_text(text: str, value: Any) -> None:
    """Numbers, true, false and null; all else is the text as it stands."""
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_names_have_values() -> None:
    """As often as wanted; every mistake is named at once."""
    assert named_values(["a=1", "b=x=y", "a=2"]) == {"a": 2, "b": "x=y"}
    with pytest.raises(InputError) as caught:
        named_values(["n_layer", "=3", "a-b=1"])
    assert len(caught.value.problems) == 3
    assert caught.value.problems[0] == "--with 'n_layer' must be NAME=VALUE, such as n_layer=24"


@pytest.mark.parametrize("verb", ["trace", "measure"])
def test_values_need_a_function(command: Command, verb: str) -> None:
    """Without one nobody would take them."""
    if verb == "trace":
        pytest.importorskip("torch")
    answer = command(verb, "--preset", "gpt2", "--with", "n_layer=3")
    assert answer.code == 2
    assert "--with is for the arguments of --function" in answer.err
