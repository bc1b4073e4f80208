"""An integer that records its formula, a polynomial in named numbers.

Sums and products stay in normal form, so that terms cancel; any other operation (a rounded
division, a maximum) becomes a new name that shows its formula. Comparisons look at the value, so a
formula holds for the branches that its values took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .num import Num

Names = tuple[str, ...]  # one product of names, sorted; () is the constant
ORDER = ["L", "m", "b", "s", "h", "v", "f", "a", "g", "d", "r", "dp", "tp", "pp", "cp", "ep"]


class Sym:
    """An integer with its formula.

    - terms: the coefficient of each product of names
    - names: the value of each name
    """

    __slots__ = ("names", "terms", "value")

    def __init__(self, value: int, terms: Mapping[Names, int], names: Mapping[str, int]) -> None:
        self.value = value
        self.terms = dict(terms)
        self.names = dict(names)

    @classmethod
    def named(cls, value: Num, name: str) -> Sym:
        """A number with a name."""
        return cls(int(value), {(name,): 1}, {name: int(value)})

    @classmethod
    def of(cls, number: Num) -> Sym:
        """The number itself if it is a `Sym`, else a constant."""
        if isinstance(number, Sym):
            return number
        return cls(int(number), {(): int(number)}, {})

    @classmethod
    def called(cls, function: str, value: int, *args: Num) -> Sym:
        """The value of a function; the call is its name, as in `max(b, 4)`."""
        inside = [cls.of(a) for a in args]
        names = {k: v for s in inside for k, v in s.names.items()}
        text = f"{function}({', '.join(s.formula for s in inside)})"
        return cls(value, {(text,): 1}, {**names, text: value})

    def __add__(self, other: int | Sym) -> Sym:
        right = Sym.of(other)
        terms = dict(self.terms)
        for names, count in right.terms.items():
            terms[names] = terms.get(names, 0) + count
        nonzero = {names: count for names, count in terms.items() if count}
        return Sym(self.value + right.value, nonzero, {**self.names, **right.names})

    __radd__ = __add__

    def __neg__(self) -> Sym:
        return self * -1

    def __sub__(self, other: int | Sym) -> Sym:
        return self + Sym.of(other) * -1

    def __rsub__(self, other: int) -> Sym:
        return Sym.of(other) + self * -1

    def __mul__(self, other: int | Sym) -> Sym:
        right = Sym.of(other)
        terms: dict[Names, int] = {}
        for a, x in self.terms.items():
            for b, y in right.terms.items():
                factor, names = _cancelled((*a, *b))
                terms[names] = terms.get(names, 0) + x * y * factor
        nonzero = {names: count for names, count in terms.items() if count}
        return Sym(self.value * right.value, nonzero, {**self.names, **right.names})

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Sym) -> Sym:
        right = Sym.of(other)
        quotient = self._exact_quotient(right)
        if quotient is not None:
            return quotient
        value = self.value // right.value
        exact = self.value % right.value == 0
        if exact and len(self.terms) == 1 and len(right.terms) == 1:
            text = f"{_bracketed(self)} / {_bracketed(right)}"
            return Sym(value, {(text,): 1}, {**self.names, **right.names, text: value})
        return Sym.called("floor", value, _Ratio(self, right))

    def __rfloordiv__(self, other: int) -> Sym:
        return Sym.of(other) // self

    def _exact_quotient(self, right: Sym) -> Sym | None:
        """The quotient where every term is divisible, else None."""
        if len(right.terms) != 1:
            return None
        ((names, count),) = right.terms.items()
        terms: dict[Names, int] = {}
        for product, number in self.terms.items():
            left = list(product)
            if number % count or any(product.count(n) < names.count(n) for n in names):
                return None
            for name in names:
                left.remove(name)
            terms[tuple(left)] = number // count
        return Sym(self.value // right.value, terms, self.names)

    def __mod__(self, other: int | Sym) -> Sym:
        right = Sym.of(other)
        return Sym.called("mod", self.value % right.value, self, right)

    def __rmod__(self, other: int) -> Sym:
        return Sym.of(other) % self

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __bool__(self) -> bool:
        return self.value != 0

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return self.value == int(other) if isinstance(other, int | Sym) else NotImplemented

    def __lt__(self, other: int | Sym) -> bool:
        return self.value < int(other)

    def __le__(self, other: int | Sym) -> bool:
        return self.value <= int(other)

    def __gt__(self, other: int | Sym) -> bool:
        return self.value > int(other)

    def __ge__(self, other: int | Sym) -> bool:
        return self.value >= int(other)

    def __repr__(self) -> str:
        return f"Sym({self.value}, {self.formula!r})"

    @property
    def formula(self) -> str:
        """The formula with names: `2 × b × s × h + 4 × b × s`."""
        return self._text(lambda name: name)

    @property
    def numbers(self) -> str:
        """The formula with values for names: `2 × 4 × 4,096 × 4,096 + ...`."""
        return self._text(lambda name: f"{self.names[name]:,}")

    def _text(self, show: Callable[[str], str]) -> str:
        parts = []
        for names, count in sorted(self.terms.items(), key=self._size, reverse=True):
            shown = [show(n) for n in names]
            number = [f"{abs(count):,}"] if abs(count) != 1 or not shown else []
            text = " × ".join(number + shown)
            parts.append(("- " if count < 0 else "+ ") + text)
        text = " ".join(parts) or "0"
        return text.removeprefix("+ ")

    def _size(self, term: tuple[Names, int]) -> int:
        value = abs(term[1])
        for name in term[0]:
            value *= self.names[name]
        return value if term[1] > 0 else -value


class _Ratio(Sym):
    """A quotient inside a function call."""

    __slots__ = ("_formula",)

    def __init__(self, left: Sym, right: Sym) -> None:
        super().__init__(0, {}, {**left.names, **right.names})
        self._formula = f"{_bracketed(left)} / {_bracketed(right)}"

    @property
    def formula(self) -> str:
        return self._formula


def ratio(left: Num, right: Num) -> Sym:
    """left / right, to be shown as the argument of a function."""
    return _Ratio(Sym.of(left), Sym.of(right))


def _bracketed(number: Sym) -> str:
    simple = len(number.terms) <= 1 and all(len(n) + (c != 1) <= 1 for n, c in number.terms.items())
    return number.formula if simple else f"({number.formula})"


def _cancelled(names: Names) -> tuple[int, Names]:
    """A product of names in order, and a factor: v / dp × dp is v, 4,096 / dp × dp is 4096."""
    left, factor = list(names), 1
    for quotient in [name for name in names if " / " in name]:
        over, _, under = quotient.partition(" / ")
        plain = over.replace(",", "").isalnum() and under.isidentifier()
        if plain and under in left and quotient in left:
            left.remove(quotient)
            left.remove(under)
            if over[0].isdigit():
                factor *= int(over.replace(",", ""))
            else:
                left.append(over)
    return factor, tuple(sorted(left, key=_place))


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)
