"""The numbers of formulas: ints, numpy arrays, or `Sym`s that record their formula.

With ints a formula gives one estimate, with arrays one for each element (no command uses that yet),
with `Sym`s its own text for `explain`. Here are the operations for which the three need different
code, such as a maximum or a choice. numpy is imported only when an argument is an array.

The types are for the type checker alone. `int`'s methods take ints only, so `Num` is a union, not a
protocol. `Bytes` are numbers, but a number becomes `Bytes` only in `sized`, from elements and
their size; sums of bytes, and bytes times or divided by a number, stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from .sym import Sym, ratio

if TYPE_CHECKING:

    class Array:
        """A numpy array of integers or conditions: what formulas do with it."""

        shape: tuple[int, ...]
        flat: Iterable[int]

        def __add__(self, other: Num, /) -> Array: ...
        def __radd__(self, other: int | Sym, /) -> Array: ...
        def __neg__(self) -> Array: ...
        def __int__(self) -> int: ...

        __sub__ = __mul__ = __floordiv__ = __mod__ = __getitem__ = __add__
        __lt__ = __le__ = __gt__ = __ge__ = __add__
        __rsub__ = __rmul__ = __rfloordiv__ = __rmod__ = __radd__

    class Bytes(int):
        """Bytes: an int, a `Sym` or an array."""

        def __add__(self, other: Bytes, /) -> Bytes: ...  # type: ignore[override]
        def __sub__(self, other: Bytes, /) -> Bytes: ...  # type: ignore[override]
        def __mul__(self, other: Num, /) -> Bytes: ...
        def __rmul__(self, other: int, /) -> Bytes: ...
        def __floordiv__(self, other: Num, /) -> Bytes: ...
        def __neg__(self) -> Bytes: ...

    Num: TypeAlias = int | Sym | Array
else:
    Array = Bytes = Num = int

N = TypeVar("N", Bytes, int, Num)  # the result is of the arguments' kind
SINGLE = (int, Sym)  # one number or condition, not an array of them
PLAIN = (int, float)  # one number; seconds are floats
EMPTY = cast(Bytes, 0)


def sized(elements: Num, bits: int) -> Bytes:
    """Bytes of elements that have `bits` bits each."""
    return elements * bits // 8  # type: ignore[return-value]  # the one door


class _Unasked:
    """In the place of numpy's array while no array has been met."""


_array: type = _Unasked
_np: ModuleType


def _numpy() -> ModuleType:
    """numpy, from the first array on."""
    global _array, _np
    if _array is _Unasked:
        import numpy

        _array, _np = numpy.ndarray, numpy
    return _np


def larger(a: N, b: N) -> N:
    """The larger of two numbers, element by element."""
    if type(a) is int and type(b) is int:
        return a if a >= b else b
    if type(a) is _array or type(b) is _array:
        return cast(N, _np.maximum(a, b))
    if isinstance(a, Sym) or isinstance(b, Sym):
        if type(b) is int and b == 0 and int(a) >= 0:
            return a
        if type(a) is int and a == 0 and int(b) >= 0:
            return b
        return cast(N, Sym.called("max", max(int(a), int(b)), a, b))
    if isinstance(a, PLAIN) and isinstance(b, PLAIN):
        return a if a >= b else b
    return cast(N, _numpy().maximum(a, b))


def smaller(a: N, b: N) -> N:
    """The smaller of two numbers, element by element."""
    if type(a) is int and type(b) is int:
        return a if a <= b else b
    if type(a) is _array or type(b) is _array:
        return cast(N, _np.minimum(a, b))
    if isinstance(a, Sym) or isinstance(b, Sym):
        return cast(N, Sym.called("min", min(int(a), int(b)), a, b))
    if isinstance(a, PLAIN) and isinstance(b, PLAIN):
        return a if a <= b else b
    return cast(N, _numpy().minimum(a, b))


def choose(condition: Num, yes: N, no: N) -> N:
    """`yes` where the condition is true, else `no`; the condition may be an array."""
    if isinstance(condition, SINGLE):
        return yes if condition else no
    return cast(N, _numpy().where(condition, yes, no))


def holds(condition: N) -> N:
    """A condition as a number, 1 or 0, that can be multiplied."""
    if isinstance(condition, SINGLE):
        return int(condition)  # type: ignore[return-value]
    return cast(N, _numpy().asarray(condition, dtype=bool).astype("int64"))


def nothing(size: Num) -> bool:
    """Whether a size is 0; false for an array, even one of zeros."""
    if type(size) is int:
        return size == 0
    return not hasattr(size, "astype") and int(size) == 0


def ceil_div(a: N, b: N) -> N:
    """a / b, rounded up."""
    if type(b) is int and b == 1:
        return a
    if isinstance(a, Sym) or isinstance(b, Sym):
        if int(a) % int(b) == 0:
            return cast(N, Sym.of(a) // b)
        return cast(N, Sym.called("ceil", -(-int(a) // int(b)), ratio(a, b)))
    return -(-a // b)


def round_up(a: N, multiple: int) -> N:
    """The next multiple at or above a."""
    if isinstance(a, Sym):
        quotient = Sym.of(ceil_div(cast(Num, a), multiple))
        return a if a.value % multiple == 0 else cast(N, quotient * multiple)
    return -(-a // multiple) * multiple


def take(table: Sequence[int], index: Num) -> Num:
    """table[index], for one index or an array of them."""
    if isinstance(index, SINGLE):
        return table[int(index)]
    return cast(Array, _numpy().asarray(table)[index])


def largest(numbers: Num) -> int:
    """A number, or the largest one of an array."""
    return int(numbers.max()) if hasattr(numbers, "max") else int(numbers)


def power_of_two(a: N) -> N:
    """The next power of two at or above a; 0 stays 0."""
    if isinstance(a, Sym):
        return cast(N, Sym.called("power_of_two", power_of_two(a.value), a))
    if isinstance(a, int):
        return 1 << (a - 1).bit_length() if a > 0 else 0  # type: ignore[return-value]
    np = _numpy()
    powers = np.left_shift(np.int64(1), np.frexp(a - 1)[1].astype("int64"))
    return cast(N, np.where(a > 0, powers, 0))


def together(function: Callable[..., Iterable[int]], *numbers: Num) -> tuple[Num, ...]:
    """Apply a function of ints, which returns a tuple of ints, to numbers or arrays that broadcast.

    For functions without an arithmetic form: it is called once for each different element.
    """
    if all(isinstance(n, SINGLE) for n in numbers):
        return tuple(function(*map(int, numbers)))
    np = _numpy()
    grid = np.broadcast_arrays(*numbers)
    points = list(zip(*(g.ravel().tolist() for g in grid), strict=True))
    known = {point: tuple(function(*point)) for point in dict.fromkeys(points)}
    columns = np.asarray([known[point] for point in points], dtype="int64").T
    return tuple(column.reshape(grid[0].shape) for column in columns)
