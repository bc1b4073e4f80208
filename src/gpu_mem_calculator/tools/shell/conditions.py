"""Decides the conditions of a shell script where their values are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from .expansion import Expansion
from .variables import is_known

NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
OPEN_CLOSE = {"[": "]", "[[": "]]", "test": ""}
MOST_WORDS = 200


def decide(words: list[str], expansion: Expansion) -> bool | None:
    """The result of `[ ... ]`, `[[ ... ]]` or `test`; None where it is not known."""
    inner = words[1:-1] if OPEN_CLOSE[words[0]] else words[1:]
    if len(inner) > MOST_WORDS:
        return None
    return _any(inner, expansion)


def _any(words: list[str], expansion: Expansion) -> bool | None:
    return _joined(words, ("||", "-o"), expansion, decisive=True)


def _all(words: list[str], expansion: Expansion) -> bool | None:
    return _joined(words, ("&&", "-a"), expansion, decisive=False)


def _joined(
    words: list[str], operators: tuple[str, str], expansion: Expansion, *, decisive: bool
) -> bool | None:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in operators:
            parts.append([])
        else:
            parts[-1].append(word)
    inner = _all if decisive else _one
    results = [inner(part, expansion) for part in parts]
    if decisive in results:
        return decisive
    return None if None in results else not decisive


def _one(words: list[str], expansion: Expansion) -> bool | None:
    if words[:1] == ["!"]:
        result = _one(words[1:], expansion)
        return None if result is None else not result
    if "(" in words or ")" in words:
        return None
    if words[:1] == ["-v"] and len(words) == 2:
        return expansion.variables.elements(words[1]) is not None
    texts = [_operand(word, expansion) for word in words]
    if len(texts) == 1:
        return _known(texts[0], bool(texts[0]))
    if len(texts) == 2 and words[0] in ("-z", "-n"):
        return _known(texts[1], (words[0] == "-z") is not bool(texts[1]))
    if len(texts) == 3:
        return _compare(texts[0], words[1], texts[2])
    return None


def _operand(word: str, expansion: Expansion) -> str:
    expansion.empty_if_unset = True
    try:
        return expansion.text(word)
    finally:
        expansion.empty_if_unset = False


def _known(text: str, result: bool) -> bool | None:
    return result if is_known(text) else None


def _compare(left: str, operator: str, right: str) -> bool | None:
    if not is_known(left) or not is_known(right):
        return None
    if operator in NUMBERS:
        numbers = [one.strip() for one in (left, right)]
        if not all(re.fullmatch(r"-?\d{1,18}", one) for one in numbers):
            return None
        return NUMBERS[operator](int(numbers[0]), int(numbers[1]))
    if operator in ("=", "==", "!="):
        return fnmatchcase(left, right) is (operator != "!=")
    return None
