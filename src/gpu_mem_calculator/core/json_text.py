"""Parses strict JSON, and says how to correct text that is not."""

from __future__ import annotations

import json
from typing import Any, NoReturn

COMMENTS = ("//", "/*", "#")
BLANK = " \t\r\n"


def parse_json(text: str) -> Any:
    """The data of a JSON text; raises ValueError with the line and how to correct it."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(_sentence(text, error)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its pairs; a key that occurs twice is an error."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice in one object; leave one out")
    return data


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON; write one")


def _sentence(text: str, error: json.JSONDecodeError) -> str:
    """A sentence on what is wrong at the place where the parser stopped."""
    at = error.pos + len(text[error.pos :]) - len(text[error.pos :].lstrip(BLANK))
    rest = text[at:]
    comment = next((mark for mark in COMMENTS if rest.startswith(mark)), None)
    if comment is not None:
        return (
            f"line {_line(text, at)} has a {comment} comment, which JSON does not know; take it out"
        )
    comma, follows = len(text[:at].rstrip(BLANK)) - 1, rest[:1]
    if follows == ",":  # newer versions of Python stop at the comma itself
        comma, follows = at, rest[1:].lstrip(BLANK)[:1]
    if text[comma : comma + 1] == "," and follows in ("}", "]"):
        return f"line {_line(text, comma)} has a comma in front of {follows}; take the comma out"
    if error.msg == "Extra data":
        return f"line {_line(text, at)} goes on after the end; take out {rest[:20].rstrip()!r}"
    return str(error)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
