"""Hydra's command line: `key=value`, `+key=value`, `++key=value`, `~key` (hydra 1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...runfile.text.errors import InputError
from ...runfile.text.yaml_text import parse_yaml

OPTIONS = ("--config-path", "--config-name", "--config-dir", "-cp", "-cn", "-cd")


def read_overrides(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values by key, and Hydra's own options by name."""
    values: dict[str, Any] = {}
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, sign, text = word.partition("=")
        if name in OPTIONS:
            options[name] = text if sign else (rest.pop(0) if rest else "")
        elif sign and not word.startswith("-"):
            values[name.lstrip("+")] = _value(text)
        elif word.strip() and not word.startswith(("~", "-", "$")):
            raise InputError(f"{word!r} is no override of Hydra; write it as key=value")
    return values, options


def _value(text: str) -> Any:
    """The value of an override; a text that is no YAML is kept as it is."""
    try:
        return parse_yaml(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text
