"""The margin: what must be added to the memory that torch needs to be sure that a run survives.

The replay's requests come in nearly the order of the real ones; where two swap, other blocks are
split, and the run needs a little more or less.
"""

from __future__ import annotations

SHARE = 0.25
"""Of the difference between reserved and needed memory."""
RESERVED_SPREAD = 0.004
"""By which reserved memory may be larger than predicted, as a share of it."""


def enough_bytes(reserved: int) -> int:
    """With this many bytes torch never has to release cached memory, so the run survives."""
    return reserved + int(reserved * RESERVED_SPREAD)


def margin_bytes(needs: int, reserved: int) -> int:
    """Bytes beyond `needs` with which a run is certain to survive."""
    return min(enough_bytes(reserved) - needs, int((reserved - needs) * SHARE) + needs // 200)
