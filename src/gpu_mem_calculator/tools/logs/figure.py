"""A figure as it was printed: its value, and how much its last digit is worth.

`14.90 GiB` can be any number of bytes that is printed so, which decides whether a size is equal to
a computed one.
"""

from __future__ import annotations

from decimal import Decimal

from msgspec import Struct

# What a unit is worth. torch and most tools print GB and mean GiB; a row with `decimal` does not.
BINARY = {"b": 1, "byte": 1, "bytes": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class Figure(Struct, frozen=True):
    """A printed number.

    - `value`: bytes for a size, else the number itself
    - `step`: what one of the last printed digit is worth
    """

    value: int | float
    step: float = 1

    def is_near(self, value: float) -> bool:
        """Whether a value is printed as this figure is, rounded to the nearest or cut off."""
        return self.value - self.step / 2 <= value < self.value + self.step


def size(number: str, unit: str, *, decimal: bool = False) -> Figure:
    """A size in bytes, such as `14.90` and `GiB`."""
    worth = unit_bytes(unit, decimal=decimal)
    value, step = _number(number)
    return Figure(round(value * worth), max(float(step * worth), 1))


def unit_bytes(unit: str, *, decimal: bool = False) -> int:
    """The bytes of a unit: `GiB`, `GB`, `MiB`, `M`, `kB`, `bytes`."""
    name = unit.strip().lower()
    if name in ("", "b", "byte", "bytes"):
        return 1
    return (DECIMAL if decimal and "i" not in name else BINARY)[name[0]]


def number(text: str) -> Figure:
    """A number such as `1,024` or `0.92`."""
    value, step = _number(text)
    return Figure(int(value) if step == 1 else float(value), float(step))


def _number(text: str) -> tuple[Decimal, Decimal]:
    value = Decimal(text.replace(",", "").replace("_", ""))
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # the patterns admit digits only
    return value, Decimal(10) ** min(exponent, 0)
