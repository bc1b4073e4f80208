"""Shell arithmetic on integers; None where a value is not known."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

MOST_CHARACTERS = 400
MOST_NUMBER = 2**63
NAME = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\b\}?")
ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.+)", re.DOTALL)
STEP = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*")
COMPARE: Mapping[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _divide(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _power(left: int, right: int) -> int:
    return left**right if 0 <= right <= 64 and abs(left) <= 2**20 else MOST_NUMBER


BINARY: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: lambda left, right: left - right * _divide(left, right),
    ast.Pow: _power,
}


def evaluate(text: str, value_of: Callable[[str], str | None]) -> int | None:
    """The value of an expression whose variables are looked up by `value_of`."""
    if len(text) > MOST_CHARACTERS:
        return None
    unknown = False

    def number(match: re.Match[str]) -> str:
        nonlocal unknown
        value = (value_of(match[1]) or "").strip()
        unknown = unknown or not re.fullmatch(r"-?\d{1,18}", value)
        return "0" if unknown else f"({int(value)})"

    plain = NAME.sub(number, text)
    plain = re.sub(r"\b0+(?=\d)", "", plain).replace("&&", " and ").replace("||", " or ")
    if unknown or not re.fullmatch(r"[\d\s+\-*/%()<>=!andor]*", plain) or "//" in plain:
        return None
    plain = re.sub(r"!(?!=)", " not ", plain)
    try:
        result = _value(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return result if result is not None and abs(result) < MOST_NUMBER else None


def _value(node: Any) -> int | None:
    if isinstance(node, ast.Constant):
        return int(node.value) if isinstance(node.value, int) else None
    parts = [_value(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    if None in parts:
        return None
    numbers = [one for one in parts if one is not None]
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        result = BINARY[type(node.op)](*numbers)
        return result if abs(result) < MOST_NUMBER else None
    if isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            return int(not numbers[0])
        return -numbers[0] if isinstance(node.op, ast.USub) else numbers[0]
    if isinstance(node, ast.BoolOp):
        joined = all(numbers) if isinstance(node.op, ast.And) else any(numbers)
        return int(joined)
    if isinstance(node, ast.Compare) and len(numbers) == 2 and type(node.ops[0]) in COMPARE:
        return int(COMPARE[type(node.ops[0])](*numbers))
    return None


def assignment(text: str) -> tuple[str, str] | None:
    """The variable that an arithmetic command sets and the expression of its new value."""
    step = STEP.fullmatch(text)
    if step:
        name, sign = step[1] or step[4], (step[2] or step[3])[0]
        return name, f"{name} {sign} 1"
    match = ASSIGNMENT.fullmatch(text)
    if match is None:
        return None
    return match[1], f"{match[1]} {match[2]} ({match[3]})" if match[2] else match[3]
