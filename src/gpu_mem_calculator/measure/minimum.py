"""The least memory that a run survives in: bisect torch's cap, a fresh process for each try."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

TRIES = 8
NEAR = 0.004  # of the answer: how near the two ends must come
# Under its peak a run cannot work, whatever the allocator does; a little above what the allocator
# reserved when it had room, it must (torch's own segments round up).
SURELY_FAILS, SURELY_WORKS = 0.995, 1.002


class Minimum(Struct, frozen=True):
    """The run survives in `survives_in_bytes`, and does not in `fails_in_bytes`."""

    survives_in_bytes: int
    fails_in_bytes: int
    tries: int


def find_minimum(
    allocated_bytes: int, reserved_bytes: int, survives: Callable[[int], bool]
) -> Minimum:
    """Bisect between the allocated peak of the steps and the reserved peak.

    Start-up does not set the lower end: DeepSpeed flattens on the CPU when the GPU is too small.
    """
    low, high = int(allocated_bytes * SURELY_FAILS), int(reserved_bytes * SURELY_WORKS)
    tries = 0
    while tries < TRIES and high - low > NEAR * high:
        middle = (low + high) // 2
        low, high = (low, middle) if survives(middle) else (middle, high)
        tries += 1
    return Minimum(high, low, tries)
