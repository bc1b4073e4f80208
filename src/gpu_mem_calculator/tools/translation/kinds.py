"""What the value of an argument must be: one check for the arguments of all tools.

The kind is that of the type which the lock of the tool's release states; where no lock is read,
that of the default. An argument that takes several kinds of values has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TRUTH, TEXT, WHOLE, NUMBER = "true or false", "a text", "a whole number", "a number"
OBJECT, NAMES = "an object", "a list of names"
OBJECTS = ("_kwargs", "_config")  # ends of names of arguments that are read as objects
PLAIN: Mapping[str, type] = {TRUTH: bool, TEXT: str, OBJECT: Mapping, "": object}
MOST = 10**12
BY_TYPE: Mapping[frozenset[str], str] = {
    frozenset({"bool"}): TRUTH,
    frozenset({"int"}): WHOLE,
    frozenset({"float"}): NUMBER,
    frozenset({"int", "float"}): NUMBER,
    frozenset({"str"}): TEXT,
    frozenset({"list"}): NAMES,
}


def kind_of(name: str, type_: str, default: Any) -> str:
    """What a value must be; empty where the tool takes several kinds.

    - type_: as in `Stated`; empty where it is not known
    """
    if name.endswith(OBJECTS):
        return OBJECT
    if type_:
        return BY_TYPE.get(frozenset(type_.split(" | ")) - {"None"}, "")
    return BY_TYPE.get(frozenset({type(default).__name__}), "")


def fits(kind: str, value: Any, *, signed: bool = False) -> bool:
    """Whether a value is of a kind; a whole number may be negative only if it is `signed`."""
    if kind in PLAIN:
        return isinstance(value, PLAIN[kind])
    if kind == NAMES:
        names = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return names or isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind == WHOLE:
        return isinstance(value, int) and (-MOST if signed else 0) <= value <= MOST
    return math.isfinite(value)


def converts(kind: str, value: Any) -> bool:
    """Whether a tool that converts values takes one: 1 or a text for true."""
    if kind == TRUTH:
        return isinstance(value, bool | int | str | None)
    if kind in (WHOLE, NUMBER):
        return isinstance(value, int | float | None)
    return True
