"""Bytes of each unit; no other module defines them."""

from typing import cast

from .num import Bytes

KIB = cast(Bytes, 2**10)
MIB = cast(Bytes, 2**20)
GIB = cast(Bytes, 2**30)
