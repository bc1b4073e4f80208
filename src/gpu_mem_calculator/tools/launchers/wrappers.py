"""Words in front of a command that change nothing in it: variables, env, nohup, uv run ..."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..translation.arguments import tables

VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Wrappers, and their options that have a value.
WRAPPERS: Mapping[str, tuple[str, ...]] = tables(__file__)["wrappers"]
SECOND_WORD = {
    **dict.fromkeys(("uv", "poetry", "pixi", "conda", "mamba"), "run"),
    "nsys": "profile",
}
WITH_ARGUMENT = ("timeout", "taskset")  # wrappers whose first word is their own


def without_variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that are set in front of a command, and the other words."""
    variables, rest = {}, list(words)
    while rest and (match := VARIABLE.fullmatch(rest[0])):
        variables[match[1]] = match[2]
        rest.pop(0)
    return variables, rest


def without_wrappers(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that are set in front of a command, and the command itself."""
    variables, rest = without_variables(words)
    while rest and rest[0] in WRAPPERS:
        if rest[0] in SECOND_WORD and rest[1:2] != [SECOND_WORD[rest[0]]]:
            break
        more, rest = without_variables(_after_wrapper(rest))
        variables |= more
    return variables, rest


def _after_wrapper(words: list[str]) -> list[str]:
    name, rest = words[0], words[2 if words[0] in SECOND_WORD else 1 :]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        if option in WRAPPERS[name] and rest:
            rest.pop(0)
    return rest[1:] if name in WITH_ARGUMENT else rest
