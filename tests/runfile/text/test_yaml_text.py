"""YAML within bounds."""

from __future__ import annotations

import re

import pytest

from gpu_mem_calculator.runfile.text import yaml_text
from gpu_mem_calculator.runfile.text.yaml_text import parse_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 9)
)


@pytest.fixture(params=["libyaml", "Python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's loaders."""
    if request.param == "Python":
        monkeypatch.delattr("yaml.CSafeLoader", raising=False)


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text", [BOMB, MERGES])
def test_aliases_that_grow_beyond_the_bound_are_refused(text: str) -> None:
    """A kilobyte that stands for gigabytes is not written out."""
    with pytest.raises(ValueError, match="more than 20,000 values, aliases written out"):
        parse_yaml(text)


@pytest.mark.usefixtures("loader")
def test_aliases_within_the_bound_are_read() -> None:
    """Anchors and merges save a user's words."""
    text = "base: &b {seq_len: 512, list: &l [1, 2]}\ntraining: {<<: *b, again: *l}"
    assert parse_yaml(text)["training"] == {"seq_len": 512, "list": [1, 2], "again": [1, 2]}


@pytest.mark.usefixtures("loader")
def test_an_alias_counts_its_own_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the file before its anchor: 13 values, 3 of the list, and twice 3 more."""
    text = f"before: {list(range(10))}\nlist: &l [1, 2]\nagain: [*l, *l]"
    total = 1 + (1 + 11) + (1 + 3) + (1 + 1 + 2 * 3)
    monkeypatch.setattr(yaml_text, "MOST_VALUES", total)
    assert parse_yaml(text)["again"] == [[1, 2], [1, 2]]
    monkeypatch.setattr(yaml_text, "MOST_VALUES", total - 1)
    with pytest.raises(ValueError, match=f"more than {total - 1} values"):
        parse_yaml(text)


@pytest.mark.usefixtures("loader")
def test_an_alias_inside_what_it_stands_for_is_refused() -> None:
    """It has no end."""
    with pytest.raises(ValueError, match=r"\*a is part of what it stands for; write it out"):
        parse_yaml("a: &a [1, *a]")


@pytest.mark.usefixtures("loader")
def test_deep_nesting_is_a_sentence() -> None:
    """The process is not ended by it."""
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        parse_yaml("[" * 200_000)


def test_values_are_counted_without_aliases_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long file stops at the same bound."""
    monkeypatch.setattr(yaml_text, "MOST_VALUES", 10)
    assert parse_yaml("[1, 2, 3, 4, 5, 6, 7, 8, 9]") == list(range(1, 10))
    with pytest.raises(ValueError, match="more than 10 values"):
        parse_yaml("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]")


def test_libyaml_reads_where_pyyaml_has_it() -> None:
    """It is about ten times as fast."""
    yaml = pytest.importorskip("yaml")
    if not yaml.__with_libyaml__:
        pytest.skip("PyYAML has no libyaml here")
    assert issubclass(yaml_text._loader(), yaml.CSafeLoader)


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: a is there twice; delete one of them"),
        ("x: {a: 1, a: 2}", "line 1: a is there twice"),
        ("a:\n\tb: 1", "line 2: it is indented by a tab; use spaces"),
        ("a: 1\n---\nb: 2", "line 2: a second document begins here"),
        ("a: !!binary aGk=", "line 1: values of type !!binary are not read; write a plain one"),
        ("a: !!python/name:os.system", "line 1: values of type !!python/name:os.system"),
        ("? [1]\n: 2", "line 1: a list or an object cannot be a key"),
        ("a: [1", "line "),
        ("a: b: c", "line 1: "),
    ],
)
def test_what_is_wrong_and_where(text: str, words: str) -> None:
    """One line, without Python's types."""
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("loader")
def test_values_have_the_types_of_json() -> None:
    """A date is text, and 5e8 a number as in JSON."""
    text = "{a: 2024-01-01, b: 5e8, c: 1.5e-3, d: 1e9x, e: 2024-01-01 10:00:00, f: 12}"
    assert parse_yaml(text) == {
        "a": "2024-01-01",
        "b": 5e8,
        "c": 1.5e-3,
        "d": "1e9x",
        "e": "2024-01-01 10:00:00",
        "f": 12,
    }


@pytest.mark.usefixtures("loader")
def test_a_merged_key_may_be_written_again() -> None:
    """That is how a merge is overridden."""
    merged = parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")
    assert merged["b"] == {"x": 3, "y": 2}
