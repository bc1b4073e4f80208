"""The peak of a walk: the highest instant."""

from __future__ import annotations

from gpu_mem_calculator.pytorch.autograd.peak import PeakParts


def test_the_first_of_equal_instants_is_the_peak() -> None:
    """A later one has to be higher."""
    first = PeakParts(1, 2, 0)
    assert first.or_higher(3, 0, 0) == first
    assert first.or_higher(3, 0, 1) == PeakParts(3, 0, 1)
    assert first.or_higher(0, 2, 0) == first
