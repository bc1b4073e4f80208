"""What formulas have given, kept from one call to the next; one `forget` clears it all.

A `Sym` equals its value and an array has no hash, so neither may be part of a key: a call with one
is made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

Function = TypeVar("Function", bound=Callable[..., Any])
ATOMS = frozenset((int, bool, float, str, type(None), frozenset))
_clears: list[Callable[[], None]] = []


def only_ints(value: Any) -> bool:
    """Whether all numbers in a value are plain ones: no `Sym`, no array.

    A structure that is asked often says so itself, in a cached property `only_ints`.
    """
    if isinstance(value, Struct):
        known = getattr(value, "only_ints", None)
        return fields_only_ints(value) if known is None else bool(known)
    return type(value) in ATOMS or (type(value) is tuple and _all(value))


def fields_only_ints(value: Struct) -> bool:
    """The same of each field of a structure."""
    return _all(astuple(value))


def _all(values: tuple[Any, ...]) -> bool:
    """The same of each of several values."""
    others = {*map(type, values)} - ATOMS
    return not others or all(only_ints(value) for value in values if type(value) in others)


def remembered(most: int, *, always: bool = False) -> Callable[[Function], Function]:
    """Keep a function's last `most` results, of calls with plain numbers.

    `always`: of every call, where arguments are plain by construction or stand for plain ones.
    """

    def decorate(function: Function) -> Function:
        kept = lru_cache(maxsize=most)(function)
        _clears.append(kept.cache_clear)
        if always:
            return kept  # type: ignore[return-value]

        @wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            for value in (*values, *named.values()):
                if type(value) not in ATOMS and not only_ints(value):
                    return function(*values, **named)
            return kept(*values, **named)

        return call  # type: ignore[return-value]

    return decorate


def forget() -> None:
    """As in a process that has just begun."""
    for clear in _clears:
        clear()
