"""`--set` as Helm reads it: a.b=1, list={a,b}, list[0].key=x, a\\,b as text, null removes."""

from __future__ import annotations

import re
from typing import Any


class SetError(ValueError):
    """A --set that Helm refuses."""


class SetLine:
    """One `--set` text, read from left to right into a tree of values."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def until(self, stops: str) -> tuple[str, str]:
        """The text up to one of these characters, and which one: none at the end."""
        found = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char in stops:
                return found, char
            if char == "\\" and self.at < len(self.text):
                char = self.text[self.at]
                self.at += 1
            found += char
        return found, ""

    def into(self, values: dict[str, Any]) -> None:
        """Every pair of the line."""
        while self.at < len(self.text):
            self.pair(values)

    def pair(self, values: dict[str, Any]) -> None:
        """One key, however deep, and its value."""
        key, stop = self.until("=[,.")
        if stop in ("", ","):
            raise SetError(f"key {key!r} has no value")
        if stop == "=":
            values[key] = self.value()
        elif stop == ".":
            inner = values.setdefault(key, {})
            if not isinstance(inner, dict):
                raise SetError(f"unable to parse key: {key!r} is not a map")
            self.pair(inner)
        else:
            held = values.setdefault(key, [])
            if not isinstance(held, list):
                raise SetError(f"unable to parse key: {key!r} is not a list")
            self.item(held)

    def item(self, held: list[Any]) -> None:
        """What follows `key[`: an index and then a value, a key of a map, or one more index."""
        digits, _ = self.until("]")
        if not re.fullmatch(r"\d+", digits):
            raise SetError(f"error parsing index: {digits!r}")
        index = int(digits)
        held.extend([None] * (index + 1 - len(held)))
        rest, stop = self.until("[.=")
        if rest or not stop:
            raise SetError(f"unexpected data at end of array index: {rest!r}")
        if stop == "=":
            held[index] = self.value()
            return
        wanted: Any = {} if stop == "." else []
        if not isinstance(held[index], type(wanted)):
            held[index] = wanted
        (self.pair if stop == "." else self.item)(held[index])

    def value(self) -> Any:
        """A scalar up to the next comma, or a list in braces."""
        if not self.text.startswith("{", self.at):
            return typed(self.until(",")[0])
        self.at += 1
        found: list[Any] = []
        while True:
            text, stop = self.until(",}")
            if not stop:
                raise SetError("list must terminate with '}'")
            found.append(typed(text))
            if stop == "}":
                self.at += self.text.startswith(",", self.at)
                return found


def typed(text: str) -> Any:
    """Helm's types: bools, null and whole numbers; all else is text, `70e9` and `1.5` too."""
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    whole = re.fullmatch(r"0|[-+]?[1-9]\d*|[-+]0\d*", text)
    return int(text) if whole and -(2**63) <= int(text) < 2**63 else text


def set_into(values: dict[str, Any], line: str) -> None:
    """The values with a --set line's over them."""
    SetLine(line).into(values)
