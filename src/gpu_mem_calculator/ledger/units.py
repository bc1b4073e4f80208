"""Bytes of each unit; no other module defines them."""

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
