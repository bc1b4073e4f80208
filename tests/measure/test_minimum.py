"""The bisection of the cap."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.measure.minimum import NEAR, TRIES, find_minimum

GIB = 2**30


@pytest.mark.parametrize("least", [10.01, 11.3, 12.9, 13.999])
def test_the_least_memory_is_between_the_two_ends(least: float) -> None:
    """A run that needs a known amount: found to within 0.4 %, in few tries."""
    tried: list[int] = []

    def survives(cap: int) -> bool:
        tried.append(cap)
        return cap >= least * GIB

    found = find_minimum(10 * GIB, 14 * GIB, survives)
    assert found.fails_in_bytes < least * GIB <= found.survives_in_bytes
    assert found.survives_in_bytes - found.fails_in_bytes <= NEAR * found.survives_in_bytes
    assert len(tried) == found.tries <= TRIES


def test_where_little_lies_between_one_try_is_enough() -> None:
    """A run that reserves no more than it allocates is answered almost at once."""
    found = find_minimum(10 * GIB, 10 * GIB, lambda cap: cap >= 10 * GIB)
    assert found.tries <= 1
    assert found.fails_in_bytes < 10 * GIB <= found.survives_in_bytes


def test_the_number_of_tries_is_bounded() -> None:
    """A run that reserves ten times what it allocates ends too."""
    assert find_minimum(GIB, 100 * GIB, lambda cap: False).tries == TRIES
