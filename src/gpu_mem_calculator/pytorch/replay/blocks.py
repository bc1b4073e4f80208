"""A block as one integer: its size in units of 512 bytes in the high bits, its address in the low.

Free blocks of a pool, which are ordered by size and then by address, are then sorted as numbers.
Every pool and CUDA stream has a separate list. Source: torch 2.11 BlockComparatorSize.
"""

from .rounding import ROUND_LARGE

SHIFT = 40
"""Bits of an address; the size is in the bits above them."""
ADDRESS = (1 << SHIFT) - 1
"""Mask of an address."""
SPREAD = ROUND_LARGE + 1
"""A page of 2 MiB has one address more than it has units, so that no two segments are adjacent, and
adjacent free blocks always belong to one segment."""
NEVER = 1 << 62
"""More units than any size."""
LARGEST = 1 << SHIFT - 1
"""Units of the largest card, which stands for none given: half of all addresses. Tensors that grow
with every batch would otherwise leave free blocks behind until the addresses are used up."""
SPAN = 1 << 31
"""Units of address space of a segment that expands, 1 TiB (torch: 9/8 of the card's memory)."""
