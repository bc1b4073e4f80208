"""The least memory that a run survives in: bisects torch's cap, each run in a new process."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

TRIES = 9
NEAR = 0.003  # the two ends are this close at the end, as a share of the upper one
# Below its allocated peak a run must fail. A little above what the allocator reserved with free
# memory left, it must survive (torch's segments round up).
SURELY_FAILS, SURELY_WORKS = 0.995, 1.002
STEP = 0.02  # an end that does not hold is moved by this share, then by twice that, and so on
Survives = Callable[[int], bool]


class Minimum(Struct, frozen=True):
    """The run survives in `survives_in_bytes` and fails in `fails_in_bytes`, after `tries` runs."""

    survives_in_bytes: int
    fails_in_bytes: int
    tries: int


def find_minimum(allocated_bytes: int, reserved_bytes: int, survives: Survives) -> Minimum:
    """Bisect between the measured allocated peak of the steps and the reserved peak.

    The start-up peak is not the lower end: DeepSpeed flattens on the CPU when the GPU is too small.
    """
    low, high = int(allocated_bytes * SURELY_FAILS), int(reserved_bytes * SURELY_WORKS)
    return bisect(low, high, survives)


def bisect(low: int, high: int, survives: Survives) -> Minimum:
    """Bisect between a cap that fails and one that survives."""
    tries = 0
    while tries < TRIES and high - low > NEAR * high:
        middle = (low + high) // 2
        low, high = (low, middle) if survives(middle) else (middle, high)
        tries += 1
    return Minimum(high, low, tries)


def find_minimum_between(low: int, high: int, survives: Survives) -> Minimum:
    """Bisect between two caps that are only predicted: each end is tried, and moved until it holds.

    `survives` raises where a cap is more than the card has.
    """
    failed, step, tries = 0, STEP, 1
    while not survives(high):
        failed, high, step, tries = high, int(high * (1 + step)), 2 * step, tries + 1
    low, step = max(low, failed), STEP
    while True:
        found = bisect(low, high, survives)
        tries += found.tries
        if failed or found.fails_in_bytes > low:
            return Minimum(found.survives_in_bytes, found.fails_in_bytes, tries)
        tries += 1
        if not survives(low):
            return Minimum(found.survives_in_bytes, low, tries)
        low, high, step = int(low * (1 - min(step, 0.5))), low, 2 * step
