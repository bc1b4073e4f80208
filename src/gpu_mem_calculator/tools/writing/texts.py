"""Data as the text of a file: JSON, YAML, TOML, and the options of a command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 88  # columns of a command, before it continues on another line
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def json_text(data: Any) -> str:
    """Indented JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def yaml_text(data: Any) -> str:
    """YAML in the order of the data."""
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text


def toml_text(data: Mapping[str, Any], path: str = "") -> str:
    """TOML: plain values first, then a table for each object; None is left out."""
    given = {key: value for key, value in data.items() if value is not None}
    tables = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(given[key])}\n" for key in given if key not in tables]
    head = f"[{path}]\n" if path and (lines or not tables) else ""
    parts = [head + "".join(lines)] if head or lines else []
    for key, value in tables.items():
        parts.append(toml_text(value, f"{path}.{_key(key)}" if path else _key(key)))
    return "\n".join(parts)


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {_value(one)}" for key, one in value.items() if one is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return json.dumps(value)


def option_words(data: Mapping[str, Any]) -> Iterator[str]:
    """Arguments as `--name value`; objects as JSON, lists as several values."""
    for name, value in data.items():
        yield f"--{name}"
        if isinstance(value, bool):
            yield str(value).lower()
        elif isinstance(value, list | tuple):
            yield from map(str, value)
        else:
            yield json.dumps(value) if isinstance(value, Mapping) else str(value)


def command_text(words: Sequence[str]) -> str:
    """A command for a shell, an option on each line where it is long."""
    whole = shlex.join(words)
    if len(whole) <= WIDTH:
        return whole + "\n"
    return " \\\n  ".join(option_lines(words)) + "\n"


def option_lines(words: Sequence[str]) -> list[str]:
    """One line for each option with its values."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(word)
    return [shlex.join(line) for line in lines]
