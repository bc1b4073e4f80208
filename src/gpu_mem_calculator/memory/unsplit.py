"""Blocks that torch's caching allocator leaves in one piece, and counts whole."""

from __future__ import annotations

from collections.abc import Iterable

from ..ledger.num import Num, holds, round_up
from ..ledger.source import code
from ..ledger.units import MIB

UNSPLIT_CODE = code(
    "torch 2.11 c10/cuda/CUDACachingAllocator.cpp get_allocation_size, should_split"
)


def unsplit_bytes(size: Num) -> Num:
    """What a new block has beyond a request.

    From 10 MiB on a request gets a segment of its own, rounded up to 2 MiB; a rest of 1 MiB or
    less is not split off and counts as allocated. Smaller requests share 20 MiB segments and are
    left out, and so is what a block that is used again has left over.
    """
    rest = round_up(size, 2 * MIB) - size
    return rest * holds(size >= 10 * MIB) * holds(rest <= MIB)


def unsplit_total(sizes: Iterable[tuple[Num, Num]]) -> Num:
    """The same for many tensors: the bytes of one, and how many there are."""
    total: Num = 0
    for size, count in sizes:
        total = total + unsplit_bytes(size) * count
    return total
