"""Parameters are broadcast in flat copies, two of them at a time."""

from __future__ import annotations

from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.training.step.broadcast import broadcast_events


def test_the_older_of_two_copies_is_freed_first() -> None:
    """Three copies of 300 MiB each: a second one is made, then the first is freed."""
    events = broadcast_events([200 * MIB, 100 * MIB] * 3)
    assert events.sizes == (300 * MIB,) * 3
    assert events.forward == (0, 1, ~0, 2, ~1, ~2)


def test_a_parameter_that_fills_a_copy_is_sent_without_one() -> None:
    """An empty tensor stands for it."""
    assert broadcast_events([250 * MIB, 8, 8]).sizes == (0, 16)
