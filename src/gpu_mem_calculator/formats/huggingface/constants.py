"""The value of an expression in a script, where its text shows it. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final


class Unknown:
    """A value that only a run of the script would show."""


UNKNOWN: Final = Unknown()
DTYPES = ("bfloat16", "float16", "float32", "half", "float", "uint8")
LONGEST_TEXT = 10_000


def constant(node: ast.AST | None, names: Mapping[str, Any]) -> Any:
    """The value of an expression, or UNKNOWN.

    - names: values of variables, and of the attributes of parsed arguments (`args.name`)
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        return _attribute(node, names)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        values = [constant(one, names) for one in node.elts]
        return UNKNOWN if UNKNOWN in values else values
    if isinstance(node, ast.Dict):
        return _dictionary(node, names)
    if isinstance(node, ast.UnaryOp | ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp):
        return _operation(node, names)
    return _call(node, names) if isinstance(node, ast.Call) else UNKNOWN


def _attribute(node: ast.Attribute, names: Mapping[str, Any]) -> Any:
    """torch.bfloat16 is a word; args.x is the option x."""
    if isinstance(node.value, ast.Name) and node.value.id == "torch":
        return node.attr if node.attr in DTYPES else UNKNOWN
    return names.get(f".{node.attr}", UNKNOWN)


def _dictionary(node: ast.Dict, names: Mapping[str, Any]) -> Any:
    pairs = {}
    for key, value in zip(node.keys, node.values, strict=True):
        word, found = constant(key, names), constant(value, names)
        if not isinstance(word, str) or found is UNKNOWN:
            return UNKNOWN
        pairs[word] = found
    return pairs


def _operation(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Signs, `not`, comparisons, choices, and the four kinds of arithmetic."""
    if isinstance(node, ast.IfExp):
        test = constant(node.test, names)
        if test is UNKNOWN:
            return UNKNOWN
        return constant(node.body if test else node.orelse, names)
    if isinstance(node, ast.UnaryOp):
        value = constant(node.operand, names)
        if value is UNKNOWN:
            return UNKNOWN
        if isinstance(node.op, ast.Not):
            return not value
        number = isinstance(value, int | float) and isinstance(node.op, ast.USub)
        return -value if number else UNKNOWN
    if isinstance(node, ast.BoolOp):
        return _chosen([constant(one, names) for one in node.values], isinstance(node.op, ast.Or))
    return _compared(node, names) if isinstance(node, ast.Compare) else _sum(node, names)


def _chosen(values: list[Any], stops: bool) -> Any:
    """The value of `a or b` (stops: true) or of `a and b`. Behind an unknown value, only a true or
    false that decides a condition is known.
    """
    unknown = False
    for value in values:
        if value is UNKNOWN:
            unknown = True
        elif bool(value) == stops:
            return value if not unknown or isinstance(value, bool) else UNKNOWN
    return UNKNOWN if unknown else values[-1]


def _compared(node: ast.Compare, names: Mapping[str, Any]) -> Any:
    left, right = constant(node.left, names), constant(node.comparators[0], names)
    if UNKNOWN in (left, right) or len(node.ops) > 1:
        return UNKNOWN
    operator = node.ops[0]
    if isinstance(operator, ast.Eq | ast.Is):
        return left == right
    if isinstance(operator, ast.NotEq | ast.IsNot):
        return left != right
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, list):
        return (left in right) == isinstance(operator, ast.In)
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if numbers and isinstance(operator, ast.Gt | ast.Lt):
        return left > right if isinstance(operator, ast.Gt) else left < right
    return UNKNOWN


def _sum(node: ast.AST, names: Mapping[str, Any]) -> Any:
    if not isinstance(node, ast.BinOp):
        return UNKNOWN
    left, right = constant(node.left, names), constant(node.right, names)
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return UNKNOWN
    if abs(left) > 1e15 or abs(right) > 1e15:
        return UNKNOWN
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.FloorDiv) and right:
        return left // right
    return UNKNOWN


def _call(node: ast.Call, names: Mapping[str, Any]) -> Any:
    """`dict(a=1)`, `getattr(torch, word)`, `len(list)`, int, float and str of a constant."""
    function = node.func.id if isinstance(node.func, ast.Name) else ""
    values = [constant(one, names) for one in node.args]
    if function == "dict" and not values:
        pairs = {one.arg: constant(one.value, names) for one in node.keywords if one.arg}
        return UNKNOWN if UNKNOWN in pairs.values() else pairs
    if function == "getattr" and len(values) == 2 and isinstance(values[1], str):
        return values[1]
    if function == "len" and len(values) == 1 and isinstance(values[0], list):
        return len(values[0])
    if function in ("int", "float", "str") and len(values) == 1:
        value = values[0]
        if isinstance(value, int | float | str) and len(str(value)) < 40:
            try:
                return {"int": int, "float": float, "str": str}[function](value)
            except ValueError:
                return UNKNOWN
    return UNKNOWN
