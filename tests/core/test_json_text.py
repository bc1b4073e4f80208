"""Text that is almost JSON is refused with its line, and how to correct it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mem_calculator.core.json_text import parse_json


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, // one\n "b": 2}', "line 1 has a // comment, which JSON does not know; take it"),
        ('{"a": 1 // one\n}', "line 1 has a // comment"),
        ('{\n/* one */ "a": 1}', "line 2 has a /* comment"),
        ("# one\n{}", "line 1 has a # comment"),
        ('{"a": [1,\n 2,\n]}', "line 2 has a comma in front of ]; take the comma out"),
        ('{"a": {"b": 2,\n\n}}', "line 1 has a comma in front of }"),
        ('{"a": 1},', "line 1 goes on after the end; take out ','"),
        ('{"a": 1}\n{"b": 2}', "line 2 goes on after the end"),
        ('{"a": 1, "a": 2}', "'a' is there twice in one object; leave one out"),
        ('{"a": NaN}', "NaN is no number of JSON; write one"),
        ('{"a" 1}', "line 1 column 6"),
        ("", "line 1 column 1"),
    ],
)
def test_what_is_wrong_and_where(text: str, words: str) -> None:
    """One line."""
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse_json(text)
    assert "\n" not in str(caught.value)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(data=VALUES)
def test_json_is_read_as_it_is(data: object) -> None:
    """Everything that the standard library writes is read."""
    assert parse_json(json.dumps(data)) == data


@given(text=st.text(alphabet='{}[],:"/# \n1a', max_size=20))
def test_any_other_text_is_a_value_error(text: str) -> None:
    """And none that the standard library reads is refused, but for keys that are there twice."""
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"line [0-9]+|twice"):
            parse_json(text)
        return
    try:
        assert parse_json(text) == expected
    except ValueError as error:
        assert "is there twice" in str(error)
