"""Fits, tight or not: the words, and where one ends and the next begins."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.core.fit_verdict import SPREAD_PERCENT, spread_bytes, verdict
from gpu_mem_calculator.ledger.units import GIB
from tests.conftest import small_run


@pytest.mark.parametrize(
    ("has", "word"),
    [
        (1021, "fits"),
        (1020, "fits"),
        (1019, "tight"),
        (1000, "tight"),
        (999, "tight"),
        (980, "tight"),
        (979, "does not fit"),
        (1, "does not fit"),
    ],
)
def test_tight_is_the_spread_on_both_sides(has: int, word: str) -> None:
    """A need of 1,000 is known to 20: from 980 to 1,019 it is tight."""
    assert SPREAD_PERCENT == 2
    assert spread_bytes(1000) == 20
    assert verdict(1000, has) == word


@pytest.mark.parametrize(
    ("percent", "word", "fits"),
    [(110, "fits", True), (101, "tight", True), (99, "tight", False), (90, "does not fit", False)],
)
def test_a_result_says_the_word_and_whether_it_fits(percent: int, word: str, fits: bool) -> None:
    """`fits_on_gpu` is about the limit alone, `verdict` knows the spread."""
    needs = round(estimate(small_run()).total_memory_per_gpu_gb * GIB)
    card = {"gpu_memory_bytes": needs * percent // 100}
    result = estimate(small_run(hardware=card))
    assert (result.verdict, result.fits_on_gpu) == (word, fits)
    assert (result.headroom_bytes >= 0) == fits
