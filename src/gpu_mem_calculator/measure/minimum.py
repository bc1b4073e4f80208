"""The least memory that a run survives in: bisects torch's cap, each run in a new process."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

TRIES = 8
NEAR = 0.004  # the two ends are this close at the end, as a share of the upper one
# Below its allocated peak a run must fail. A little above what the allocator reserved with free
# memory left, it must survive (torch's segments round up).
SURELY_FAILS, SURELY_WORKS = 0.995, 1.002


class Minimum(Struct, frozen=True):
    """The run survives in `survives_in_bytes` and fails in `fails_in_bytes`, after `tries` runs."""

    survives_in_bytes: int
    fails_in_bytes: int
    tries: int


def find_minimum(
    allocated_bytes: int, reserved_bytes: int, survives: Callable[[int], bool]
) -> Minimum:
    """Bisect between the allocated peak of the steps and the reserved peak.

    The start-up peak is not the lower end: DeepSpeed flattens on the CPU when the GPU is too small.
    """
    low, high = int(allocated_bytes * SURELY_FAILS), int(reserved_bytes * SURELY_WORKS)
    tries = 0
    while tries < TRIES and high - low > NEAR * high:
        middle = (low + high) // 2
        low, high = (low, middle) if survives(middle) else (middle, high)
        tries += 1
    return Minimum(high, low, tries)
