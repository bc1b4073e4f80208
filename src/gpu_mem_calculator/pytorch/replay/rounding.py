"""Sizes: what a request is rounded up to, and the segment that the driver is asked for.

Source: torch 2.11 c10/cuda/CUDACachingAllocator.cpp (round_size, get_allocation_size), with the
constants of c10/core/AllocatorConfig.h. Sizes here are in units of 512 bytes.
"""

from __future__ import annotations

from ...ledger.units import MIB
from .settings import INTERVALS, AllocatorSettings

UNIT = 512
"""kMinBlockSize: every block is a multiple of it."""
SMALL = MIB // UNIT
"""kSmallSize: the largest block of the small pool."""
SMALL_SEGMENT = 2 * MIB // UNIT
"""kSmallBuffer: small blocks are split off segments of this size."""
LEAST_OWN_SEGMENT = 10 * MIB // UNIT
"""kMinLargeAlloc: a block of at least this size gets a separate segment of its size."""
ROUND_LARGE = 2 * MIB // UNIT
"""kRoundLarge: such a segment is a multiple of this."""


def block_bytes(size_bytes: int) -> int:
    """Bytes of the block for a request, with torch's default settings."""
    return -(-size_bytes // UNIT) * UNIT


def round_units(size_bytes: int, settings: AllocatorSettings) -> int:
    """Units of the block for a request: ceil(bytes / 512), or rounded up to the next division of a
    power of two with `roundup_power2_divisions` and a request above 512 x divisions.
    """
    if size_bytes <= 0:
        return 0
    interval = min(max(size_bytes.bit_length() - 1 - 20, 0), INTERVALS - 1)
    divisions = settings.roundup_power2_divisions[interval]
    if divisions > 1 and size_bytes > UNIT * divisions:
        step = 1 << (size_bytes.bit_length() - divisions.bit_length())
        return -(-size_bytes // step) * step // UNIT
    return -(-size_bytes // UNIT)


def segment_units(units: int, large_segment_units: int) -> int:
    """Units of the new segment that a block of `units` is split off."""
    if units <= SMALL:
        return SMALL_SEGMENT
    if units < LEAST_OWN_SEGMENT:
        return large_segment_units
    return -(-units // ROUND_LARGE) * ROUND_LARGE
