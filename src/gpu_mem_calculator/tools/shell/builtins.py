"""Commands of the shell itself that set variables: export, declare, set, shift, unset ..."""

from __future__ import annotations

import re

from .expansion import Expansion
from .tokens import tokens_of
from .variables import Variables

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*(?:\[[^\]]*\])?)(\+?)=(.*)", re.DOTALL)
DECLARATIONS = frozenset({"export", "declare", "local", "readonly", "typeset"})


def assign(raw: str, expansion: Expansion) -> str | None:
    """Set the variable of `NAME=value` or `NAME=(...)`; its name, or None for another word."""
    match = ASSIGNMENT.fullmatch(raw)
    if match is None:
        return None
    name, append, value = match[1], bool(match[2]), match[3]
    if value.startswith("("):
        expansion.variables.set_array(name, array_words(value[1:-1], expansion), append=append)
    else:
        expansion.variables.set(name, expansion.text(value), append=append)
    return name.partition("[")[0]


def array_words(text: str, expansion: Expansion) -> list[str]:
    """The elements of an array in parentheses."""
    words = (token.text for token in tokens_of(text, expansion.work) if token.kind == "word")
    return [one for word in words for one in expansion.words(word)]


def declare(raw_words: list[str], expansion: Expansion) -> None:
    """export, declare, local and the like."""
    options = [word for word in raw_words[1:] if word.startswith("-")]
    exports = raw_words[0] == "export" or any("x" in option for option in options)
    for raw in raw_words[1:]:
        if raw in options:
            continue
        for word in [raw] if ASSIGNMENT.fullmatch(raw) else expansion.words(raw):
            name = assign(word, expansion) or word
            if exports and "-n" not in options:
                expansion.variables.exported.add(name)


def set_arguments(words: list[str], variables: Variables) -> None:
    """`set -- a b`, `shift 2`, `unset NAME`."""
    if words[0] == "set" and "--" in words:
        variables.arguments = words[words.index("--") + 1 :]
        variables.arguments_known = True
    elif words[0] == "shift":
        count = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
        del variables.arguments[: min(count, 10_000)]
    elif words[0] == "unset":
        for name in words[1:]:
            variables.values.pop(name, None)
            variables.exported.discard(name)
