"""A YAML file of options as the words of a command, as vLLM and SGLang read theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...runfile.text.errors import InputError
from .named_files import NamedFiles
from .options import OptionSyntax

CONFIG = "--config"


def with_config(words: Sequence[str], files: NamedFiles, syntax: OptionSyntax) -> list[str]:
    """The words with those of the file that --config names in front: the command wins."""
    rest, names = _without_config(words)
    if len(names) > 1:
        raise InputError(f"{CONFIG} is given {len(names)} times; give one file")
    if not names:
        return rest
    data = files.data(names[0], CONFIG)
    if not isinstance(data, Mapping):
        raise InputError(f"{CONFIG} {names[0]}: must be options and their values, one a line")
    positional = rest[:1] if rest and not rest[0].startswith("-") else []
    return [*positional, *config_words(data, syntax), *rest[len(positional) :]]


def config_words(data: Mapping[str, Any], syntax: OptionSyntax) -> list[str]:
    """The words of a file's options."""
    return [word for key, value in data.items() for word in _words(str(key), value, syntax)]


def _words(key: str, value: Any, syntax: OptionSyntax) -> Iterator[str]:
    name = key.replace("-", "_")
    if isinstance(value, bool) and name.removeprefix("no_") in syntax.flags:
        if value or name in syntax.flags:
            yield f"--{key}" if value else f"--no-{key}"
    elif isinstance(value, list):
        yield from (f"--{key}", *map(_text, value)) if value else ()
    elif value is not None:
        yield from (f"--{key}", _text(value))


def _text(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_config(words: Sequence[str]) -> tuple[list[str], list[str]]:
    rest: list[str] = []
    names: list[str] = []
    pending = iter(words)
    for word in pending:
        name, sign, value = word.partition("=")
        if name != CONFIG:
            rest.append(word)
        elif sign:
            names.append(value)
        elif (following := next(pending, None)) is None:
            raise InputError(f"{CONFIG} needs the name of a YAML file after it")
        else:
            names.append(following)
    return rest, names
