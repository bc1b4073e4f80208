"""The Pareto front of plans: memory against time."""

from __future__ import annotations

from collections.abc import Sequence

from .plans import Plan


def pareto_front(plans: Sequence[Plan]) -> list[int]:
    """Indices of plans, best first, that fit and need less memory than every better one."""
    front: list[int] = []
    for index, plan in enumerate(plans):
        if plan.fits_on_gpu and (not front or plan.needs_bytes < plans[front[-1]].needs_bytes):
            front.append(index)
    return front
