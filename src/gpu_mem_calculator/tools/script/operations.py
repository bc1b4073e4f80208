"""Operators and functions of plain values. Nothing of a script is executed."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..translation.arguments import tables
from .values import UNKNOWN, Thing

MOST = 1e15  # numbers beyond it are not computed
LONGEST_TEXT = 10_000
LONGEST_LIST = 1_000
Operator = Callable[[Any, Any], Any]
ARITHMETIC: Mapping[type[ast.operator], Operator] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else UNKNOWN,
    ast.Div: lambda a, b: a / b if b else UNKNOWN,
    ast.Mod: lambda a, b: a % b if b else UNKNOWN,
    ast.Pow: lambda a, b: a**b if abs(a) < 2**31 and 0 <= b <= 4 else UNKNOWN,
}
COMPARISONS: Mapping[type[ast.cmpop], Operator] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Is: lambda a, b: a is b if isinstance(a, Thing) or isinstance(b, Thing) else a == b,
    ast.IsNot: lambda a, b: a is not b if isinstance(a, Thing) or isinstance(b, Thing) else a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Gt: lambda a, b: a > b,
    ast.Lt: lambda a, b: a < b,
    ast.GtE: lambda a, b: a >= b,
    ast.LtE: lambda a, b: a <= b,
}
TEXT_METHODS = tuple(tables(__file__)["text_methods"])


def calculate(operator: ast.operator, left: Any, right: Any) -> Any:
    """The value of a sum, a product and so on; texts and lists are joined."""
    if isinstance(left, str) and isinstance(right, str) and isinstance(operator, ast.Add):
        return left + right if len(left) + len(right) < LONGEST_TEXT else UNKNOWN
    if isinstance(left, str) and isinstance(right, str) and isinstance(operator, ast.Div):
        return os.path.join(left, right)  # of pathlib
    if isinstance(left, list) and isinstance(right, list) and isinstance(operator, ast.Add):
        return [*left, *right] if len(left) + len(right) < LONGEST_LIST else UNKNOWN
    if isinstance(left, dict) and isinstance(right, dict) and isinstance(operator, ast.BitOr):
        return {**left, **right}
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if not numbers or abs(left) > MOST or abs(right) > MOST or type(operator) not in ARITHMETIC:
        return UNKNOWN
    return ARITHMETIC[type(operator)](left, right)


def compare(operator: ast.cmpop, left: Any, right: Any) -> Any:
    """The truth of a comparison, UNKNOWN where a side is not known."""
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    inside = isinstance(operator, ast.In | ast.NotIn) and isinstance(right, list | tuple)
    if inside and UNKNOWN in right and left not in right:
        return UNKNOWN
    try:
        return COMPARISONS[type(operator)](left, right)
    except (TypeError, KeyError):
        return UNKNOWN


def choose(values: Sequence[Any], *, stops: bool) -> Any:
    """The value of `a or b` (stops: true) or of `a and b`. Behind an unknown value, only a true or
    false that decides a condition is known.
    """
    unknown = False
    for value in values:
        if value is UNKNOWN:
            unknown = True
        elif truth(value) == stops:
            return value if not unknown or isinstance(value, bool) else UNKNOWN
    return UNKNOWN if unknown else values[-1]


def truth(value: Any) -> bool:
    """Whether a known value counts as true."""
    return True if isinstance(value, Thing) else bool(value)


def item(value: Any, key: Any) -> Any:
    """`value[key]` of lists, texts and dictionaries."""
    if key is UNKNOWN or not isinstance(value, list | tuple | dict | str):
        return UNKNOWN
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        return UNKNOWN


def text_method(text: str, name: str, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """A method of a text."""
    known = all(isinstance(one, str | int) for one in (*values, *named.values()))
    try:
        if name == "join" and values and isinstance(values[0], list | tuple):
            every = all(isinstance(one, str) for one in values[0])
            return text.join(values[0]) if every else UNKNOWN
        if name == "format" and known and len(text) < LONGEST_TEXT:
            return text.format(*values, **named) if "{" in text and "!" not in text else text
        if name in TEXT_METHODS and known:
            return getattr(text, name)(*values, **named)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        pass
    return UNKNOWN


def dictionary_method(data: dict[Any, Any], name: str, values: Sequence[Any]) -> Any:
    """A method of a dictionary; `update` and `pop` change it."""
    key = values[0] if values else None
    if name in ("get", "pop", "setdefault") and isinstance(key, str | int):
        default = values[1] if len(values) > 1 else None
        if name == "pop":
            return data.pop(key, default)
        return data.setdefault(key, default) if name == "setdefault" else data.get(key, default)
    if name == "update" and isinstance(key, Mapping):
        data.update(key)
        return None
    if name in ("keys", "values", "items", "copy"):
        found = {"keys": list(data), "values": list(data.values()), "items": list(data.items())}
        return dict(data) if name == "copy" else found[name]
    return UNKNOWN


def list_method(items: list[Any], name: str, values: Sequence[Any]) -> Any:
    """A method of a list."""
    if name in ("append", "add") and values and len(items) < LONGEST_LIST:
        items.append(values[0])
        return None
    if name == "extend" and values and isinstance(values[0], list):
        items.extend(values[0][:LONGEST_LIST])
        return None
    if name in ("remove", "discard") and values:
        if values[0] in items:
            items.remove(values[0])
        return None
    if name == "copy":
        return list(items)
    return UNKNOWN


def builtin(name: str, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """A function of Python itself on values that are known."""
    one = values[0] if values else None
    if name == "dict":
        known = isinstance(one, Mapping) or not values
        return {**(one or {}), **named} if known else UNKNOWN
    if name in ("list", "tuple", "set", "sorted"):
        known = isinstance(one, list | tuple | dict) or not values
        return list(one or ()) if known else UNKNOWN
    if name == "len" and isinstance(one, list | tuple | dict | str):
        return len(one)
    if name in ("int", "float", "str", "bool") and len(values) == 1:
        return _converted(name, one)
    if name in ("min", "max", "sum", "round", "abs"):
        return _number(name, values)
    if name == "range" and all(isinstance(v, int) for v in values) and values:
        numbers = range(*values[:3]) if 0 not in values[2:] else range(0)
        return list(numbers) if len(numbers) <= 64 else UNKNOWN
    if name == "enumerate" and isinstance(one, list):
        return [(place, each) for place, each in enumerate(one)]
    if name == "zip" and values and all(isinstance(each, list) for each in values):
        return [tuple(each) for each in zip(*values, strict=False)]
    return UNKNOWN


def _converted(name: str, value: Any) -> Any:
    if name == "bool" and value is not UNKNOWN:
        return truth(value)
    if isinstance(value, int | float | str) and len(str(value)) < 40:
        try:
            return {"int": int, "float": float, "str": str}[name](value)
        except (ValueError, OverflowError):
            return UNKNOWN
    return value if name == "str" and isinstance(value, str) else UNKNOWN


def _number(name: str, values: Sequence[Any]) -> Any:
    numbers = values[0] if len(values) == 1 and isinstance(values[0], list | tuple) else values
    if not numbers or not all(isinstance(one, int | float) for one in numbers):
        return UNKNOWN
    try:
        if name in ("min", "max", "sum"):
            function: Any = {"min": min, "max": max, "sum": sum}[name]
            return function(numbers)
        return round(*numbers) if name == "round" else abs(numbers[0])
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN


def path_function(name: str, values: Sequence[Any]) -> Any:
    """`os.path.join` and its kind; whether a file exists is not known."""
    if not all(isinstance(one, str) for one in values) or not values:
        return UNKNOWN
    if name == "join":
        return os.path.join(*values)
    if name in ("abspath", "expanduser", "realpath"):
        return values[0]
    if name in ("basename", "dirname", "normpath"):
        return getattr(os.path, name)(values[0])
    return UNKNOWN
