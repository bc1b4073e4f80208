"""Parses JSON, comments and last commas included, and says how to correct other text."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, NoReturn

from ...ledger.secrets import hidden

BLANK = " \t\r\n"
_STRING = r'"(?:[^"\\\n]++|\\.)*+"?'
_COMMENT = rf"{_STRING}|(?P<extra>(?://|#)[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/)"
_LAST_COMMA = rf"{_STRING}|[{{\[,:]\s*+,|(?P<extra>,)(?=\s*+[}}\]])"
_SINGLE_QUOTES = r"[{\[,:]\s*'"
_WORDS = {"True": "true", "False": "false", "None": "null"}  # Python's, and JSON's


def parse_json(text: str) -> Any:
    """The data of a JSON text, without secrets; raises ValueError with the line and how to correct
    it, and without the text there, which may be a secret.

    Comments (`//`, `#`, `/* */`) and a comma before `}` or `]` are accepted, as DeepSpeed's parser
    (hjson) accepts them.
    """
    try:
        return hidden(_loads(text))
    except json.JSONDecodeError:
        plain = _without_extras(text)
    try:
        return hidden(_loads(plain))
    except json.JSONDecodeError as error:
        raise ValueError(_sentence(plain, error)) from None


def _loads(text: str) -> Any:
    """The data of a strict JSON text."""
    return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)


def _without_extras(text: str) -> str:
    """The text with comments and last commas replaced by spaces, so that lines stay the same."""
    return re.sub(_LAST_COMMA, _blank, re.sub(_COMMENT, _blank, text))


def _blank(found: re.Match[str]) -> str:
    """Spaces of the same length and lines for a comment or a last comma, else what was found."""
    extra = found[0]
    if found.lastgroup is None:
        return extra
    return (
        "\n".join(" " * len(line) for line in extra.split("\n"))
        if "\n" in extra
        else (" " * len(extra))
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its pairs; a key that occurs twice is an error."""
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{json.dumps(twice)} occurs twice in one object; delete one of them")
    return data


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number in JSON; write a number")


def _sentence(text: str, error: json.JSONDecodeError) -> str:
    """A sentence on what is wrong at the place where the parser stopped."""
    at = error.pos + len(text[error.pos :]) - len(text[error.pos :].lstrip(BLANK))
    line, rest = text.count("\n", 0, at) + 1, text[at:]
    if rest.startswith("/*"):
        return f"line {line} begins a /* comment that has no */; add it"
    if error.msg == "Extra data":
        if rest.startswith(":") and text.lstrip(BLANK).startswith('"'):
            return "it has no braces around it; put { before it and } after it"
        if rest.rstrip(BLANK) == ",":
            return f"line {line} has a comma after the end; delete it"
        if rest.startswith(("{", "[")):
            return f"line {line} begins a second object; give each a file of its own"
        return f"line {line} continues after the end; delete that"
    for word, instead in _WORDS.items():
        if re.match(rf"{word}\b", rest):
            return f"line {line} has Python's {word}; write {instead}"
    if rest.startswith("'") or re.match(_SINGLE_QUOTES, text[max(0, at - 1) :]):
        return f"line {line} has single quotes; use double quotes"
    if not rest:
        return f"it ends on line {line} before it is complete; is a part missing?"
    what = error.msg[:1].lower() + error.msg[1:]
    return f"line {line} column {error.colno}: {what}"
