"""Results of formulas, cached from one call to the next; `forget` clears all caches.

A `Sym` equals its value, so it cannot be part of a key: a call with one is never cached. A small
array is part of a key by its contents; a call with a large one is not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, wraps
from typing import Generic, ParamSpec, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import astuple

Given = ParamSpec("Given")
Result = TypeVar("Result")
Kept = TypeVar("Kept")
ATOMS = frozenset((int, bool, float, str, type(None), frozenset))
MOST_ELEMENTS = 1 << 15  # of an array in a key
_clears: list[Callable[[], None]] = []


def only_ints(value: object) -> bool:
    """Whether a value holds no `Sym` and no array.

    A struct that is checked often has the answer in a cached property `only_ints`.
    """
    if isinstance(value, Struct):
        cached = getattr(value, "only_ints", None)
        return fields_only_ints(value) if cached is None else bool(cached)
    return type(value) in ATOMS or (type(value) is tuple and _all(value))


def fields_only_ints(value: Struct) -> bool:
    """Whether no field of a struct holds a `Sym` or an array."""
    return _all(astuple(value))


def _all(values: tuple[object, ...]) -> bool:
    others = {*map(type, values)} - ATOMS
    return not others or all(only_ints(value) for value in values if type(value) in others)


class ArrayLike(Protocol):
    """A numpy array, of which a key has the shape and the contents."""

    shape: tuple[int, ...]
    size: int

    def tobytes(self) -> bytes:
        """The contents."""


class Same(Generic[Kept]):
    """A value as a key, which equals none but the very same."""

    __slots__ = ("value",)

    def __init__(self, value: Kept) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


def _key(value: object) -> Hashable:
    """A key that is equal for equal values; raises TypeError where there is none."""
    if type(value) in ATOMS or type(value) is Same:
        return value
    if isinstance(value, tuple | list):
        return type(value), *[_key(one) for one in value]
    if isinstance(value, Mapping):
        return frozenset((name, _key(one)) for name, one in value.items())
    if isinstance(value, Struct):
        return _struct_key(value)
    if isinstance(value, dict):
        return tuple([(name, _key(one)) for name, one in value.items()])
    if hasattr(value, "tobytes"):
        array = cast(ArrayLike, value)
        if array.size <= MOST_ELEMENTS:
            return array.shape, array.tobytes()
    if callable(value):
        return value
    raise TypeError(type(value))


def _struct_key(value: Struct) -> Hashable:
    """The key of a struct; one that has a place for it is asked once."""
    if only_ints(value):
        return value
    kept = getattr(value, "__dict__", {})
    if "array_key" not in kept:
        kept["array_key"] = type(value), *[_key(one) for one in astuple(value)]
    return cast(Hashable, kept["array_key"])


def remembered(
    most: int, *, always: bool = False
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorator: cache a function's last `most` results, of calls without a `Sym` or an array.

    `always`: of every call, for arguments that never hold one, or that are keys made for the cache.
    """

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        cache = lru_cache(maxsize=most)(function)
        _clears.append(cache.cache_clear)
        cached = cast(Callable[Given, Result], cache)
        if always:
            return cached

        of_arrays: OrderedDict[object, Result] = OrderedDict()
        _clears.append(of_arrays.clear)

        @wraps(function)
        def call(*values: Given.args, **named: Given.kwargs) -> Result:
            for value in (*values, *named.values()):
                if type(value) not in ATOMS and not only_ints(value):
                    break
            else:
                return cached(*values, **named)
            try:
                key = _key((values, *sorted(named.items())))
            except TypeError:
                return function(*values, **named)
            if key not in of_arrays:
                of_arrays[key] = function(*values, **named)
                if len(of_arrays) > most:
                    of_arrays.popitem(last=False)
            return of_arrays[key]

        return call

    return decorate


def forget() -> None:
    """Clear all caches."""
    for clear in _clears:
        clear()
