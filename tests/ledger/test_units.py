"""Bytes of a unit."""

from __future__ import annotations

from gpu_mem_calculator.ledger.units import GIB, KIB, MIB


def test_a_unit_is_1024_of_the_next_smaller_one() -> None:
    """KiB, MiB and GiB, as nvidia-smi and torch use them."""
    assert (KIB, MIB, GIB) == (1024, 1024 * 1024, 1024 * 1024 * 1024)
