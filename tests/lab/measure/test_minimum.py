"""The bisection of the cap."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.lab.measure.cases import NEAR, TRIES, find_minimum, find_minimum_between

GIB = 2**30


@pytest.mark.parametrize("least", [10.01, 11.3, 12.9, 13.999])
def test_the_least_memory_is_between_the_two_ends(least: float) -> None:
    """A run that needs a known amount: found to within 0.3 %, in few tries."""
    tried: list[int] = []

    def survives(cap: int) -> bool:
        tried.append(cap)
        return cap >= least * GIB

    found = find_minimum(10 * GIB, 14 * GIB, survives)
    assert found.fails_in_bytes < least * GIB <= found.survives_in_bytes
    assert found.survives_in_bytes - found.fails_in_bytes <= NEAR * found.survives_in_bytes
    assert len(tried) == found.tries <= TRIES


def test_where_little_lies_between_two_tries_are_enough() -> None:
    """A run that reserves no more than it allocates is answered almost at once."""
    found = find_minimum(10 * GIB, 10 * GIB, lambda cap: cap >= 10 * GIB)
    assert found.tries <= 2
    assert found.fails_in_bytes < 10 * GIB <= found.survives_in_bytes


def test_the_number_of_tries_is_bounded() -> None:
    """A run that reserves ten times what it allocates ends too."""
    assert find_minimum(GIB, 100 * GIB, lambda cap: False).tries == TRIES


@pytest.mark.parametrize("least", [9.0, 10.5, 13.999, 14.5, 20.0])
def test_predicted_ends_are_tried_and_moved(least: float) -> None:
    """Wherever the answer lies, both ends of the result were tried and hold."""
    tried: dict[int, bool] = {}

    def survives(cap: int) -> bool:
        assert cap not in tried
        tried[cap] = cap >= least * GIB
        return tried[cap]

    found = find_minimum_between(10 * GIB, 14 * GIB, survives)
    assert tried[found.survives_in_bytes]
    assert not tried[found.fails_in_bytes]
    assert found.survives_in_bytes - found.fails_in_bytes <= 2 * NEAR * found.survives_in_bytes
    assert len(tried) == found.tries


def test_a_cap_above_the_card_ends_the_search() -> None:
    """`survives` raises there, and so does the search."""

    def survives(cap: int) -> bool:
        if cap > 16 * GIB:
            raise ValueError("more than this card has")
        return False

    with pytest.raises(ValueError, match="more than this card has"):
        find_minimum_between(10 * GIB, 14 * GIB, survives)
