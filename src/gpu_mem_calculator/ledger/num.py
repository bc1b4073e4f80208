"""Numbers that formulas are written in: an int, a numpy array, or a `Sym` that remembers.

A formula never asks which it was given. Fed ints it is an estimate, fed arrays a whole search
space at once, fed `Sym`s it writes itself down for `explain`. What plain operators cannot say
for all three (a maximum, a choice) is here. numpy is used only when an array comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Num: TypeAlias = Any  # int | numpy integer array | Sym


class Sym:
    """An integer that remembers its formula, with names and with the numbers put in."""

    __slots__ = ("formula", "level", "numbers", "value")

    def __init__(self, value: int, formula: str, numbers: str = "", level: int = 9) -> None:
        self.value = int(value)
        self.formula = formula
        self.numbers = numbers or f"{self.value:,}"
        self.level = level

    def _join(self, other: Num, sign: str, level: int, value: int, *, swap: bool) -> Sym:
        left, right = (as_sym(other), self) if swap else (self, as_sym(other))
        # a - (b - c) and a // (b * c) need their brackets, a + b + c and a × b × c do not
        tight = level + (sign in "-/%")

        def text(pick: str) -> str:
            a, b = getattr(left, pick), getattr(right, pick)
            a = f"({a})" if left.level < level else a
            b = f"({b})" if right.level < tight else b
            return f"{a} {sign} {b}"

        return Sym(value, text("formula"), text("numbers"), level)

    def __add__(self, other: Num) -> Sym:
        if _plain_zero(other):
            return self
        return self._join(other, "+", 1, self.value + int(other), swap=False)

    def __radd__(self, other: Num) -> Sym:
        if _plain_zero(other):
            return self
        return self._join(other, "+", 1, int(other) + self.value, swap=True)

    def __sub__(self, other: Num) -> Sym:
        if _plain_zero(other):
            return self
        return self._join(other, "-", 1, self.value - int(other), swap=False)

    def __rsub__(self, other: Num) -> Sym:
        return self._join(other, "-", 1, int(other) - self.value, swap=True)

    def __mul__(self, other: Num) -> Sym:
        if type(other) is int and other == 1:
            return self
        return self._join(other, "×", 2, self.value * int(other), swap=False)

    def __rmul__(self, other: Num) -> Sym:
        if type(other) is int and other == 1:
            return self
        return self._join(other, "×", 2, int(other) * self.value, swap=True)

    def __floordiv__(self, other: Num) -> Sym:
        if type(other) is int and other == 1:
            return self
        return self._join(other, "/", 2, self.value // int(other), swap=False)

    def __rfloordiv__(self, other: Num) -> Sym:
        return self._join(other, "/", 2, int(other) // self.value, swap=True)

    def __mod__(self, other: Num) -> Sym:
        return self._join(other, "%", 2, self.value % int(other), swap=False)

    def __neg__(self) -> Sym:
        return Sym(-self.value, f"-{self.formula}", f"-{self.numbers}", 3)

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return self.value == other if isinstance(other, int) else NotImplemented

    def __gt__(self, other: Num) -> bool:
        return self.value > int(other)

    def __ge__(self, other: Num) -> bool:
        return self.value >= int(other)

    def __lt__(self, other: Num) -> bool:
        return self.value < int(other)

    def __le__(self, other: Num) -> bool:
        return self.value <= int(other)

    def __repr__(self) -> str:
        return f"Sym({self.value}, {self.formula!r})"


def as_sym(number: Num) -> Sym:
    """The number itself, or a plain int as a constant that shows only its value."""
    return number if isinstance(number, Sym) else Sym(number, f"{int(number):,}")


def _plain_zero(number: Num) -> bool:
    return type(number) is int and number == 0


def _call(name: str, *args: Num, value: int) -> Sym:
    syms = [as_sym(a) for a in args]
    return Sym(
        value,
        f"{name}({', '.join(s.formula for s in syms)})",
        f"{name}({', '.join(s.numbers for s in syms)})",
    )


def _numpy() -> Any:
    import numpy

    return numpy


def larger(a: Num, b: Num) -> Num:
    """The larger of two numbers, element by element."""
    if type(a) is int and type(b) is int:
        return a if a >= b else b
    if isinstance(a, Sym) or isinstance(b, Sym):
        if type(b) is int and b == 0 and int(a) >= 0:
            return a
        if type(a) is int and a == 0 and int(b) >= 0:
            return b
        return _call("max", a, b, value=max(int(a), int(b)))
    return _numpy().maximum(a, b)


def smaller(a: Num, b: Num) -> Num:
    """The smaller of two numbers, element by element."""
    if type(a) is int and type(b) is int:
        return a if a <= b else b
    if isinstance(a, Sym) or isinstance(b, Sym):
        return _call("min", a, b, value=min(int(a), int(b)))
    return _numpy().minimum(a, b)


def choose(condition: Num, yes: Num, no: Num) -> Num:
    """`yes` where the condition holds, else `no`; the condition may be an array."""
    if isinstance(condition, bool | int | Sym):
        return yes if condition else no
    return _numpy().where(condition, yes, no)


def holds(condition: Num) -> Num:
    """A condition as a 0/1 number that can be multiplied."""
    return int(condition) if isinstance(condition, bool | int) else condition.astype("int64")


def ceil_div(a: Num, b: Num) -> Num:
    """a / b, rounded up."""
    if type(b) is int and b == 1:
        return a
    if isinstance(a, Sym) or isinstance(b, Sym):
        if int(a) % int(b) == 0:
            return as_sym(a) // b
        return _call("ceil", as_sym(a) // b, value=-(-int(a) // int(b)))
    return -(-a // b)


def round_up(a: Num, multiple: int) -> Num:
    """The next multiple at or above a."""
    if isinstance(a, Sym):
        return a if a.value % multiple == 0 else ceil_div(a, multiple) * multiple
    return -(-a // multiple) * multiple


def take(table: Sequence[int], index: Num) -> Num:
    """table[index], for one index or an array of them."""
    if isinstance(index, int | Sym):
        return table[int(index)]
    return _numpy().asarray(table)[index]
