"""The verdict with what is not modelled: it holds only where the bounds cannot turn it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..ledger.units import GIB
from ..run.limits import Bound, BoundedLimit, Limit
from .errors import InputError
from .fit_verdict import FITS, SHORT, UNSURE

if TYPE_CHECKING:
    from .result import MemoryResult

PARTS = ("model_params", "gradients", "optimizer_states", "activations")
"""Parts of the estimate at its peak. What touches one of them alone saves at most that part: the
instant of the peak has the rest in any case."""
WEIGHTS = {"weights_16bit": 2, "weights_32bit": 4}  # bytes a parameter of one whole model


def bound_bytes(bound: Bound, result: MemoryResult) -> int | None:
    """The bytes of a bound: as given, or those of a named part of the estimate."""
    if bound is None or isinstance(bound, int):
        return bound
    if bound in WEIGHTS:
        return WEIGHTS[bound] * result.num_parameters
    parts = bound.split("+")
    unknown = [one for one in parts if one not in PARTS]
    if unknown:
        known = ", ".join((*PARTS, *WEIGHTS))
        raise InputError(f"{unknown[0]!r} is not a part of an estimate; it can be {known}")
    sizes = [float(getattr(result.breakdown, f"{one}_gb")) for one in parts]
    return round(sum(sizes) * GIB)


def bounded(limit: Limit, result: MemoryResult) -> BoundedLimit:
    """A limit with its bounds in bytes."""
    return BoundedLimit(
        key=limit.key,
        why=limit.why,
        adds_bytes=0 if limit.could == "less" else bound_bytes(limit.adds, result),
        saves_bytes=0 if limit.could == "more" else bound_bytes(limit.saves, result),
        settle=limit.settle,
    )


def bounded_verdict(word: str, headroom: int, limits: Sequence[BoundedLimit]) -> str:
    """The verdict of the figures, `cannot_tell` where all limits together could turn it."""
    if word == FITS:
        return FITS if _within((one.adds_bytes for one in limits), headroom) else UNSURE
    if word == SHORT:
        return SHORT if _within((one.saves_bytes for one in limits), -headroom - 1) else UNSURE
    return UNSURE


def deciding(result: MemoryResult) -> list[BoundedLimit]:
    """The limits that keep the verdict open: those in the direction that would turn it, the
    unbounded ones first.
    """
    grows = result.headroom_bytes >= 0
    sizes = [(one.adds_bytes if grows else one.saves_bytes, one) for one in result.limits]
    found = [(size, one) for size, one in sizes if size is None or size > 0]
    return [one for _, one in sorted(found, key=lambda row: (row[0] is not None, -(row[0] or 0)))]


def _within(sizes: Iterable[int | None], room: int) -> bool:
    """Whether sizes are all known, and together at most `room`."""
    known = list(sizes)
    return None not in known and sum(size or 0 for size in known) <= room
