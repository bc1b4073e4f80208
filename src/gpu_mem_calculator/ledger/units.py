"""Bytes of each unit; no other module defines them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # printing the version imports this module, and should not import typing
    from .num import Bytes

KIB: Bytes = 2**10  # type: ignore[assignment]
MIB: Bytes = 2**20  # type: ignore[assignment]
GIB: Bytes = 2**30  # type: ignore[assignment]
