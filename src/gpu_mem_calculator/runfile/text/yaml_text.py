"""Parses YAML into JSON's types, with bounds on the number of values and on the depth."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from ...ledger.secrets import hidden

MOST_VALUES = 20_000  # aliases count as what they stand for
DEEPEST = 100  # PyYAML recurses, and in C without a check
TAG = "tag:yaml.org,2002:"
KNOWN_TAGS = ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value")
EXPONENT = r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$"


def parse_yaml(text: str, repeated: list[str] | None = None) -> Any:
    """The data of a YAML text, without secrets; raises ValueError with the line of an error.

    repeated: gets the keys that are there twice, of which the last holds; else they are errors
    """

    def loader(stream: str) -> Any:
        made = _loader()(stream)
        made.repeated = repeated
        return made

    return _parsed(text, lambda yaml: hidden(yaml.load(text, Loader=loader)))


def parse_yaml_documents(text: str) -> list[Any]:
    """The data of each document of a YAML text, without empty ones; bounds are those of all."""
    every: list[Any] = _parsed(text, lambda yaml: list(yaml.load_all(text, Loader=_loader())))
    return [hidden(one) for one in every if one is not None]


def _parsed(text: str, load: Callable[[Any], Any]) -> Any:
    """What PyYAML loads, within the bounds; its errors as sentences."""
    import yaml

    try:
        _check(yaml.parse(text, Loader=_base_loader()))
        return load(yaml)
    except yaml.MarkedYAMLError as error:
        raise ValueError(_sentence(error, text)) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).partition("\n")[0]) from None


def _base_loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, about ten times as fast


@cache
def _loader_of(base: Any) -> Any:
    """A loader that reads dates as strings and 5e8 as a number, and refuses a key that is there
    twice and types that JSON does not have.
    """

    class Loader(base):  # type: ignore[misc]
        repeated: list[str] | None = None

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _refuse_twice(node, self.repeated)
            return super().construct_mapping(node, deep=deep)

    Loader.yaml_constructors = {
        tag: make
        for tag, make in base.yaml_constructors.items()
        if tag is None or tag.removeprefix(TAG) in KNOWN_TAGS
    }
    Loader.add_constructor(f"{TAG}timestamp", base.construct_yaml_str)
    Loader.add_constructor(None, _refuse_tag)
    Loader.add_implicit_resolver(f"{TAG}float", re.compile(EXPONENT), list("-+0123456789."))
    return Loader


def _loader() -> Any:
    return _loader_of(_base_loader())


def _refuse_twice(node: Any, repeated: list[str] | None) -> None:
    """Raise where a key is there twice, or note it; `<<` merges another object and may be."""
    seen: set[Any] = set()
    for key, _ in getattr(node, "value", ()):
        if isinstance(key.value, str) and not key.tag.endswith(":merge"):
            if (key.tag, key.value) in seen and repeated is not None:
                repeated.append(key.value)
            elif (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise ValueError(f"line {line}: {key.value} is there twice; delete one of them")
            seen.add((key.tag, key.value))


def _refuse_tag(_: Any, node: Any) -> Any:
    name = node.tag.removeprefix(TAG)
    raise ValueError(
        f"line {node.start_mark.line + 1}: values of type !!{name} are not read; write a plain one"
    )


def _sentence(error: Any, text: str) -> str:
    """What is wrong and in which line, from PyYAML's error."""
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    problem = str(error.problem or error.context or "it is not YAML")
    words = text.split("\n", line + 1)[line:][:1]
    if any(re.match(r" *\t", one) for one in words):
        problem = "it is indented by a tab; use spaces"
    elif "another document" in problem:
        problem = "a second document begins here; give each a file of its own"
    elif "undefined alias" in problem:
        problem = "it has an undefined alias; put a text that begins with * in quotes"
    elif "unhashable key" in problem:
        problem = "a list or an object cannot be a key"
    return f"line {line + 1}: {problem}"


def _check(events: Any) -> None:
    """Count the values of a stream of parser events; raises ValueError at the first bound."""
    import yaml

    open_: list[tuple[str | None, int]] = []  # each open list or object: its anchor, and the total
    sizes: dict[str | None, int] = {}  # values that an anchor stands for
    total = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_):
                raise ValueError(f"*{event.anchor} is part of what it stands for; write it out")
            total += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.NodeEvent):
            total += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((event.anchor, total - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        if len(open_) > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        if total > MOST_VALUES:
            raise ValueError(
                f"it has more than {MOST_VALUES:,} values, aliases written out; "
                "give a smaller file, or JSON"
            )
