"""The seconds of a training step, by what they are spent on, and how seconds are added and
subtracted: one number, or an array of them element by element, by the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any, TypeAlias

from msgspec import Struct

from ...ledger.num import larger

Seconds: TypeAlias = Any  # a float for one run, an array of floats for several at once

ROUNDING = 1e-9  # of a sum of seconds
PARTS = ("compute", "host", "exposed_communication", "bubble", "optimizer", "offload")


class StepSeconds(Struct, frozen=True, kw_only=True):
    """The expected seconds of a step, an interval, and parts that add up to the expected value.

    Floats for one run, arrays for several at once.

    - `low`, `high`: 80 % of measured steps lie between them
    - `compute`: kernels of forward, backward and recompute
    - `host`: time in which the GPU waits for the host to launch kernels
    - `exposed_communication`: collectives that no kernel overlaps
    - `bubble`: time in which a pipeline stage waits for others
    - `optimizer`: the optimizer step; `offload`: transfers and the optimizer on the host
    """

    estimate: Seconds
    low: Seconds
    high: Seconds
    compute: Seconds = 0
    host: Seconds = 0
    exposed_communication: Seconds = 0
    bubble: Seconds = 0
    optimizer: Seconds = 0
    offload: Seconds = 0


def summed(seconds: Iterable[Seconds]) -> Seconds:
    """The sum, added in order: numbers and arrays give the same, bit for bit, in every Python."""
    return reduce(add, seconds, 0.0)


def difference(whole: Seconds, part: Seconds) -> Seconds:
    """`whole` less a part of it: 0 where rounding would make it negative."""
    left = whole - part
    least = left + abs(whole) * ROUNDING
    assert least.min() >= 0 if hasattr(least, "min") else least >= 0, (whole, part)
    return larger(left, 0.0)


def without(seconds: Seconds, hidden: Seconds) -> Seconds:
    """What is left of `seconds` after `hidden` of them; never negative."""
    return larger(seconds - hidden, 0.0)
