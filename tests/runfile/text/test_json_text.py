"""JSON with comments and last commas is read; other text is refused with how to correct it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.text.json_text import parse_json


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1},', "line 1 has a comma after the end; delete it"),
        ('{"a": 1}\n{"b": 2}', "line 2 begins a second object; give each a file of its own"),
        ('{"a": 1}\nthe end', "line 2 continues after the end; delete that"),
        ('"a": {\n "b": 1}', "it has no braces around it; put { before it and } after it"),
        ('{"a": 1, "a": 2}', '"a" occurs twice in one object; delete one of them'),
        ('{"a": NaN}', "NaN is not a number in JSON; write a number"),
        ('{"a": 1,\n "b": True}', "line 2 has Python's True; write true"),
        ("{'a': 1}", "line 1 has single quotes; use double quotes"),
        ("{\"a\": 'x'}", "line 1 has single quotes; use double quotes"),
        ('{"a": 1 /* one\n}', "line 1 begins a /* comment that has no */; add it"),
        ('{\n"a": [1', "it ends on line 2 before it is complete; is a part missing?"),
        ('{"a" 1}', "line 1 column 6: expecting ':' delimiter"),
        ("[1,,]", "line 1 column 4: expecting value"),
        ("[,]", "line 1 column 2: expecting value"),
        ("{,}", "line 1 column 2"),
        ('/* one\n*/ {"a" 1}', "line 2 column 9: expecting ':' delimiter"),
    ],
)
def test_what_is_wrong_and_where(text: str, words: str) -> None:
    """One line; comments do not move the place."""
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse_json(text)
    assert "\n" not in str(caught.value)


LENIENT = [
    '// x\n{"a": 1 # c\n}',
    '/* x\n*/ {"a": [1,2,],}',
    '{"a": 1\n// x,\n,\n# y\n}',
    '{"a": "//x, }", "b": "# \\" ,]"}',
    '{"train_micro_batch_size_per_gpu": 4, /* four */ "zero_optimization": {"stage": 2,},}',
]


@pytest.mark.parametrize("text", LENIENT)
def test_comments_and_last_commas_are_read_as_deepspeed_reads_them(text: str) -> None:
    """DeepSpeed's parser is hjson."""
    hjson = pytest.importorskip("hjson")
    assert parse_json(text) == hjson.loads(text)


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


@given(data=VALUES, comment=st.sampled_from(["// one\n", "# one ,\n", "/* } \n */", " "]))
def test_comments_and_last_commas_change_nothing(data: object, comment: str) -> None:
    """Not inside strings either, where they are text."""
    text = json.dumps(data, indent=1)
    lines = [line if line.endswith(("{", "[", ",")) else f"{line}," for line in text.split("\n")]
    last = f" {comment}\n".join([*lines[:-1], text.rpartition("\n")[2]])
    assert parse_json(comment + last + comment) == data


@given(text=st.text(alphabet='{}[],:"/*# \n1a', max_size=20))
def test_any_other_text_is_a_value_error(text: str) -> None:
    """And none that the standard library reads is refused, but for keys that are there twice."""
    try:
        expected = json.loads(text)
    except ValueError:
        try:
            parse_json(text)
        except ValueError as error:
            assert re.search(r"line [0-9]+|twice|braces", str(error))
        return
    try:
        assert parse_json(text) == expected
    except ValueError as error:
        assert "occurs twice" in str(error)
