"""The search for the longest sequence, on made-up bytes for each token."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpu_mem_calculator.estimates.longest_sequence import (
    last_by_ledger,
    last_that_fits,
    length_at,
    place_of,
)


def test_lengths_are_close_and_each_has_its_place() -> None:
    """Multiples of 128 up to 8,192, then at most 1/32 apart; between two it is the shorter's."""
    lengths = [length_at(place) for place in range(300)]
    assert lengths[:65] == list(range(0, 8193, 128))
    assert lengths[64:98:32] == [8192, 16384]
    for place, (length, beyond) in enumerate(pairwise(lengths)):
        assert place_of(length) == place_of(beyond - 1) == place
        assert beyond - length <= max(128, length // 32)


@pytest.mark.parametrize(
    ("limit", "longest", "most", "tries"),
    [
        (1280, 1024, 128, 3),  # as many bytes as 128 tokens take: 1024, 128, 256
        (1279, 1024, 0, 2),
        (5120, 1024, 512, 3),
        (5119, 1024, 384, 3),
        (10240, 1024, 1024, 1),  # all of the model's positions
        (10239, 1024, 896, 2),
        (10**9, 1000, 896, 1),  # a multiple of 128 below 1000
        (10**12, 2**24, 2**24, 13),
        (3840, 2**24, 384, 3),
    ],
)
def test_the_limit_itself_fits(limit: int, longest: int, most: int, tries: int) -> None:
    """A length that takes all bytes fits; one byte less, and it is the next shorter one."""
    tried = []

    def needs(place: int) -> int:
        tried.append(place)
        return 10 * length_at(place)

    assert length_at(last_by_ledger(needs, limit, place_of(longest))) == most
    assert len(tried) == tries


@pytest.mark.parametrize("square", [0, 1, 100])
@pytest.mark.parametrize("exact", [40_000, 1_000_000, 1_050_000])
def test_a_long_sequence_is_the_last_place(exact: int, square: int) -> None:
    """Also where masks grow with the square of the length."""

    def needs(place: int) -> int:
        return 10 * length_at(place) + square * length_at(place) ** 2

    limit = 10 * exact + square * exact**2
    assert last_by_ledger(needs, limit, place_of(2**24)) == place_of(exact)


@pytest.mark.parametrize("last", [40, 63, 200])
@pytest.mark.parametrize("fits", [1, 2, 23, 24, 39, 40])
def test_the_last_that_fits_is_found(last: int, fits: int) -> None:
    """No place is tried beyond the ledger's, and far below it few are."""
    tried = []

    def fits_at(place: int) -> bool:
        tried.append(place)
        return place <= fits

    assert last_that_fits(fits_at, last) == fits
    assert max(tried) <= last
    assert len(tried) <= 17 + last.bit_length()


def test_a_longer_one_may_fit_where_a_shorter_does_not() -> None:
    """Near the bound each place is tried."""
    assert last_that_fits({1, 2, 3, 40, 43, 45}.__contains__, 50) == 45


@pytest.mark.parametrize("last", [0, 1, 50])
def test_where_the_shortest_does_not_fit_none_does(last: int) -> None:
    """Known with one try at most."""
    tried: list[int] = []
    assert last_that_fits(lambda place: bool(tried.append(place)), last) == 0
    assert len(tried) == min(last, 1)
