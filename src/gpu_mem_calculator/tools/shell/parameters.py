"""`${name...}`: defaults, prefixes and suffixes, replacements, parts of a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import translate

from .variables import is_known

PARAMETER = re.compile(
    r"(?P<length>#(?=[\w@*]))?(?P<indirect>!(?=\w))?(?P<name>\w+|[@*#?$!-])"
    r"(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)",
    re.DOTALL,
)
DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
MOST_MATCHED = 1000  # characters of a value that a pattern is tried on
CASES: Mapping[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda one: one[:1].upper() + one[1:],
}


def changed(value: str, rest: str) -> str | None:
    """A value after `%`, `#`, `/`, `^`, `,` or `:`; None where the result is not known."""
    if not rest or rest.startswith("@"):
        return value
    if not is_known(value) or not is_known(rest) or len(value) > MOST_MATCHED:
        return None
    for operator in ("%%", "%", "##", "#"):
        if rest.startswith(operator):
            return _without(value, operator, rest[len(operator) :])
    if rest[0] == "/":
        return _replaced(value, rest[1:])
    if rest[0] == ":":
        return _part(value, rest[1:])
    return CASES[rest](value) if rest in CASES else None


def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(translate(text.replace("\\", "").strip("\"'")))
    except (re.error, OverflowError):
        return None


def _without(value: str, operator: str, text: str) -> str | None:
    """The value without the shortest or longest part, at its start or end, that matches."""
    pattern = _pattern(text)
    if pattern is None or text.count("*") > 4:
        return None
    places = range(len(value) + 1)
    if operator[0] == "#":
        cuts = places if operator == "#" else reversed(places)
        return next((value[cut:] for cut in cuts if pattern.match(value[:cut])), value)
    cuts = reversed(places) if operator == "%" else places
    return next((value[:cut] for cut in cuts if pattern.match(value[cut:])), value)


def _replaced(value: str, text: str) -> str | None:
    everywhere = text.startswith("/")
    old, _, new = text.removeprefix("/").replace("\\/", "\0").partition("/")
    old, new = (one.replace("\0", "/").strip("\"'") for one in (old, new))
    if any(char in old for char in "*?[") or not old:
        return None
    return value.replace(old, new) if everywhere else value.replace(old, new, 1)


def _part(value: str, text: str) -> str | None:
    match = re.fullmatch(r"\s*(-?\d{1,6})\s*(?::\s*(-?\d{1,6})\s*)?", text)
    if match is None:
        return None
    start = int(match[1])
    start = max(len(value) + start, 0) if start < 0 else start
    if match[2] is None:
        return value[start:]
    length = int(match[2])
    return value[start : length if length < 0 else start + length]
