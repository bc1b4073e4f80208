"""The data of JSON, YAML and TOML: from files, from standard input, from pasted text; and a
module's record from the file that calculate --function F --record FILE writes.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from ...catalog.hub.access import access
from ...ledger.secrets import hidden
from .errors import InputError
from .files import MOST_BYTES, MOST_RECORD_BYTES, MOST_SLOW_BYTES, STDIN, read_text
from .json_text import parse_json

if TYPE_CHECKING:
    from pathlib import Path

YAML, TOML, JSON = (".yaml", ".yml"), (".toml",), ".json"
# A key of TOML with a hundred parts: its parser takes time by the square of the parts.
DEEP_KEY = r"""(?<![\w"'-])(?:[\w"'-]++\s*+\.\s*+){100}"""
JSON_STARTS = ("{", "//", "/*")


def load_text(path: str | Path, repeated: list[str] | None = None) -> Any:
    """The data of a JSON, YAML or TOML file; `-` is standard input.

    repeated: gets the keys that YAML has twice, of which the last holds; else they are refused
    """
    return parse_file_text(file_text(path), str(path), repeated)


def file_text(path: str | Path) -> str:
    """The text of a JSON, YAML or TOML file; `-` is standard input."""
    where, ending = str(path), os.path.splitext(path)[1].lower()
    if not access().files:
        raise InputError(f"{where!r} is a path, and this service opens no files; send its content")
    if where.lower().startswith(("http://", "https://")):
        from shlex import quote

        piped = f"curl -fsSL {quote(where)} | gpu-mem-calc calculate --config -"
        raise InputError(f"{where}: addresses are not read; download the file: {piped}")
    slow = where != STDIN and ending in (*YAML, *TOML)
    return read_text(path, most=MOST_SLOW_BYTES if slow else MOST_BYTES)


def parse_file_text(text: str, path: str, repeated: list[str] | None = None) -> Any:
    """The data of a file's text, in the format of its ending."""
    if path == STDIN:
        return parse_any_text(text, "standard input", repeated)
    return parse_text(text, os.path.splitext(path)[1].lower(), path, repeated)


def parse_text(text: str, ending: str, where: str, repeated: list[str] | None = None) -> Any:
    """The data of a text in the format of `ending`; `where` names the text in error messages."""
    if not text.strip():
        raise InputError(f"{where}: the file is empty")
    kind = "YAML" if ending in YAML else "TOML" if ending in TOML else "JSON"
    try:
        if kind == "YAML":
            from .yaml_text import parse_yaml

            return parse_yaml(text, repeated)
        if kind == "TOML":
            import tomllib

            if re.search(DEEP_KEY, text):
                raise RecursionError
            return hidden(_with_dates_as_text(tomllib.loads(text)))
        return parse_json(text)
    except RecursionError:
        raise InputError(f"{where}: not valid {kind}, it is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where}: not valid {kind}, {_reason(error)}") from None


def parse_any_text(text: str, where: str, repeated: list[str] | None = None) -> Any:
    """The data of a text in any format: JSON if it begins like JSON, else TOML, else YAML."""
    if not text.strip():
        raise InputError(f"{where}: it is empty")
    if text.lstrip().startswith(JSON_STARTS):
        return parse_text(text, JSON, where)
    if len(text) > MOST_SLOW_BYTES:
        limit = f"larger than {MOST_SLOW_BYTES:,} bytes"
        raise InputError(f"{where}: it is {limit}; give a smaller text, or JSON")
    for ending in (*TOML, *YAML[:1]):
        try:
            return parse_text(text, ending, where, repeated)
        except InputError as error:
            problem = error
    raise problem


def load_record(path: str | Path, key: str) -> dict[str, Any]:
    """The record in a file; `key` is the option or key that names the file, for error messages."""
    text = read_text(path, key, most=MOST_RECORD_BYTES)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{key} {path}: cannot be read, it is not JSON") from None
    if not isinstance(record, dict):
        raise InputError(f"{key} {path}: it is not a module's record; make one with --function")
    return record


def _with_dates_as_text(data: Any) -> Any:
    """TOML's data with its dates and times as text, which JSON's types have instead."""
    if isinstance(data, dict):
        return {key: _with_dates_as_text(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_with_dates_as_text(value) for value in data]
    return data.isoformat() if hasattr(data, "isoformat") else data


def _reason(error: ValueError) -> str:
    """What is wrong, without Python's advice to programmers."""
    if "integer string conversion" in str(error):
        return "it has a number of more than 4,300 digits; write a smaller one"
    return str(error).partition("\n")[0]
