"""The numbers of formulas: ints, numpy arrays, or `Sym`s that record their formula.

With ints a formula gives one estimate, with arrays one for each element (no command uses that yet),
with `Sym`s its own text for `explain`. Here are the operations for which the three need different
code, such as a maximum or a choice. numpy is imported only when an argument is an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, cast, overload

from .sym import Sym, ratio


class Array(Protocol):
    """A numpy array of integers or conditions: what formulas may do with it."""

    shape: tuple[int, ...]
    flat: Iterable[int]

    def __add__(self, other: Num, /) -> Array: ...
    def __radd__(self, other: int | Sym, /) -> Array: ...
    def __sub__(self, other: Num, /) -> Array: ...
    def __rsub__(self, other: int | Sym, /) -> Array: ...
    def __mul__(self, other: Num, /) -> Array: ...
    def __rmul__(self, other: int | Sym, /) -> Array: ...
    def __floordiv__(self, other: Num, /) -> Array: ...
    def __rfloordiv__(self, other: int | Sym, /) -> Array: ...
    def __mod__(self, other: Num, /) -> Array: ...
    def __rmod__(self, other: int | Sym, /) -> Array: ...
    def __neg__(self) -> Array: ...
    def __lt__(self, other: Num, /) -> Array: ...
    def __le__(self, other: Num, /) -> Array: ...
    def __gt__(self, other: Num, /) -> Array: ...
    def __ge__(self, other: Num, /) -> Array: ...
    def __getitem__(self, index: Num, /) -> Array: ...
    def __int__(self) -> int: ...


# int's own methods take ints alone, so no protocol that takes other numbers holds for int: a union.
Num: TypeAlias = int | Sym | Array
SINGLE = (int, Sym)  # one number or condition, not an array of them


class _Numpy(Protocol):
    """The functions of numpy that formulas call."""

    def maximum(self, a: Num, b: Num, /) -> Array: ...
    def minimum(self, a: Num, b: Num, /) -> Array: ...
    def where(self, condition: Num, yes: Num, no: Num, /) -> Array: ...
    def asarray(self, numbers: Sequence[Num] | Array, /, dtype: str = ...) -> Array: ...
    def reshape(self, array: Array, shape: tuple[int, ...], /) -> Array: ...
    def broadcast_arrays(self, *numbers: Num) -> Sequence[Array]: ...
    def left_shift(self, number: Num, places: Num, /) -> Array: ...
    def frexp(self, number: Num, /) -> tuple[Array, Array]: ...


def _numpy() -> _Numpy:
    """numpy, imported when an array is met."""
    import numpy

    return cast(_Numpy, numpy)


@overload
def larger(a: int, b: int) -> int: ...
@overload
def larger(a: Num, b: Num) -> Num: ...
def larger(a: Num, b: Num) -> Num:
    """The larger of two numbers, element by element."""
    if type(a) is int and type(b) is int:
        return a if a >= b else b
    if isinstance(a, Sym) or isinstance(b, Sym):
        if type(b) is int and b == 0 and int(a) >= 0:
            return a
        if type(a) is int and a == 0 and int(b) >= 0:
            return b
        return Sym.called("max", max(int(a), int(b)), a, b)
    return _numpy().maximum(a, b)


@overload
def smaller(a: int, b: int) -> int: ...
@overload
def smaller(a: Num, b: Num) -> Num: ...
def smaller(a: Num, b: Num) -> Num:
    """The smaller of two numbers, element by element."""
    if type(a) is int and type(b) is int:
        return a if a <= b else b
    if isinstance(a, Sym) or isinstance(b, Sym):
        return Sym.called("min", min(int(a), int(b)), a, b)
    return _numpy().minimum(a, b)


def choose(condition: Num, yes: Num, no: Num) -> Num:
    """`yes` where the condition is true, else `no`; the condition may be an array."""
    if isinstance(condition, SINGLE):
        return yes if condition else no
    return _numpy().where(condition, yes, no)


@overload
def holds(condition: int) -> int: ...
@overload
def holds(condition: Num) -> Num: ...
def holds(condition: Num) -> Num:
    """A condition as a number, 1 or 0, that can be multiplied."""
    return int(condition) if isinstance(condition, SINGLE) else _numpy().where(condition, 1, 0)


def nothing(size: Num) -> bool:
    """Whether a size is 0; false for an array, even one of zeros."""
    if type(size) is int:
        return size == 0
    return not hasattr(size, "astype") and int(size) == 0


@overload
def ceil_div(a: int, b: int) -> int: ...
@overload
def ceil_div(a: Num, b: Num) -> Num: ...
def ceil_div(a: Num, b: Num) -> Num:
    """a / b, rounded up."""
    if type(b) is int and b == 1:
        return a
    if isinstance(a, Sym) or isinstance(b, Sym):
        if int(a) % int(b) == 0:
            return Sym.of(a) // b
        return Sym.called("ceil", -(-int(a) // int(b)), ratio(a, b))
    return -(-a // b)


@overload
def round_up(a: int, multiple: int) -> int: ...
@overload
def round_up(a: Num, multiple: int) -> Num: ...
def round_up(a: Num, multiple: int) -> Num:
    """The next multiple at or above a."""
    if isinstance(a, Sym):
        return a if a.value % multiple == 0 else ceil_div(a, multiple) * multiple
    return -(-a // multiple) * multiple


def take(table: Sequence[int], index: Num) -> Num:
    """table[index], for one index or an array of them."""
    if isinstance(index, SINGLE):
        return table[int(index)]
    return _numpy().asarray(table)[index]


@overload
def power_of_two(a: int) -> int: ...
@overload
def power_of_two(a: Num) -> Num: ...
def power_of_two(a: Num) -> Num:
    """The next power of two at or above a; 0 stays 0."""
    if isinstance(a, Sym):
        return Sym.called("power_of_two", power_of_two(a.value), a)
    if isinstance(a, int):
        return 1 << (a - 1).bit_length() if a > 0 else 0
    np = _numpy()
    return np.where(a > 0, np.left_shift(1, np.asarray(np.frexp(a - 1)[1], dtype="int64")), 0)


def together(function: Callable[..., Iterable[int]], *numbers: Num) -> tuple[Num, ...]:
    """Apply a function of ints, which returns a tuple of ints, to numbers or arrays that broadcast.

    For functions without an arithmetic form: it is called once for each element.
    """
    if all(isinstance(n, SINGLE) for n in numbers):
        return tuple(function(*map(int, numbers)))
    np = _numpy()
    grid = np.broadcast_arrays(*numbers)
    rows = [function(*map(int, point)) for point in zip(*(g.flat for g in grid), strict=True)]
    columns = (np.asarray(column, dtype="int64") for column in zip(*rows, strict=True))
    return tuple(np.reshape(column, grid[0].shape) for column in columns)
