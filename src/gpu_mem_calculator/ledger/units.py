"""Bytes of each unit, which no other module defines, and how sizes and counts are written."""

from __future__ import annotations

TYPE_CHECKING = False  # the type checker knows the name; to import typing would slow --version
if TYPE_CHECKING:
    from .num import Bytes

KIB: Bytes = 2**10  # type: ignore[assignment]
MIB: Bytes = 2**20  # type: ignore[assignment]
GIB: Bytes = 2**30  # type: ignore[assignment]


def gib(num_bytes: int, digits: int = 1) -> str:
    """Bytes as a GiB figure without the unit."""
    return f"{num_bytes / GIB:,.{digits}f}"


def count(number: int) -> str:
    """A count with three digits and a suffix: 6.74 B, 350 M."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{float(f'{number / unit:.3g}'):g} {name}"
    return str(number)
