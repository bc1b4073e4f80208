"""Larger, smaller and chosen seconds: of floats or arrays, element by element.

numpy is imported only where an argument is an array.
"""

from __future__ import annotations

from typing import Any

from .step_seconds import Seconds

ROUNDING = 1e-9  # of a sum of seconds


def _several(*values: Any) -> bool:
    return any(hasattr(value, "astype") for value in values)


def larger(a: Seconds, b: Seconds) -> Seconds:
    """The larger of two numbers."""
    if not _several(a, b):
        return a if a >= b else b
    import numpy

    return numpy.maximum(a, b)


def smaller(a: Seconds, b: Seconds) -> Seconds:
    """The smaller of two numbers."""
    if not _several(a, b):
        return a if a <= b else b
    import numpy

    return numpy.minimum(a, b)


def choose(condition: Any, yes: Seconds, no: Seconds) -> Seconds:
    """`yes` where the condition is true, else `no`."""
    if not _several(condition):
        return yes if condition else no
    import numpy

    return numpy.where(condition, yes, no)


def difference(whole: Seconds, part: Seconds) -> Seconds:
    """`whole` less a part of it: 0 where rounding would make it negative."""
    left = whole - part
    least = left + abs(whole) * ROUNDING
    assert least.min() >= 0 if _several(least) else least >= 0, (whole, part)
    return larger(left, 0.0)


def without(seconds: Seconds, hidden: Seconds) -> Seconds:
    """What is left of `seconds` after `hidden` of them; never negative."""
    return larger(seconds - hidden, 0.0)
