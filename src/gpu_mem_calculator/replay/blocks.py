"""How a block is written: one integer, its size in units of 512 bytes above its address.

The order of free blocks (by size, then by address; every pool and stream has a list of its own)
is then the order of numbers. Source: torch 2.11 BlockComparatorSize.
"""

from .rounding import ROUND_LARGE

SHIFT = 40
"""Bits of an address; the size lies above them."""
ADDRESS = (1 << SHIFT) - 1
"""Mask of an address."""
SPREAD = ROUND_LARGE + 1
"""A page of 2 MiB has one address more than it has units, so that no two segments touch and two
free blocks that touch are neighbours in one segment."""
NEVER = 1 << 62
"""More units than anything has."""
