"""The cache key of `ZeroRank` simulations: the plan fields that their result depends on."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from msgspec.structs import replace

from .layout import ZeroLayout, counted, listed

UNREAD = frozenset(("run", "instants", "frozen", "layers", "pinned", "first", "last"))
"""Fields of a plan that no rank reads while it counts; of the run, those of RUN are read."""
RUN = ("micro_batches", "optimizer", "precision")
FIELDS = tuple(name for name in ZeroLayout.__struct_fields__ if name not in UNREAD)


class CacheKey:
    """A plan, and what else the counted bytes depend on. Equal keys have equal results."""

    __slots__ = ("hash", "key", "more", "plan")

    def __init__(self, plan: ZeroLayout, more: Any) -> None:
        self.plan, self.more = plan, more
        self.key = (
            more,
            *(_hashable(getattr(plan, name)) for name in FIELDS),
            *(getattr(plan.run, name) for name in RUN),
            int(plan.table),
        )
        self.hash = hash(self.key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheKey) and self.key == other.key


def _hashable(value: Any) -> Hashable:
    """A field's value, with a dict as a tuple."""
    return tuple(value.items()) if isinstance(value, dict) else value


def plain(plan: ZeroLayout, ranks: int, micro_batches: int, runs: Any = None) -> ZeroLayout:
    """The plan of one element of an array, with plain ints.

    Micro-batches between the first and the last are alike, so there are at most three. The
    trainable elements are those of the model's configuration, without a count that overrides them.
    """
    counts = plan.counts if runs is None else counted(runs)
    runs = runs or tuple((sizes, int(units)) for sizes, units in plan.runs)
    run = replace(plan.run, micro_batches=min(micro_batches, 3))
    return replace(plan, run=run, ranks=ranks, runs=runs, counts=counts, trainable=listed(runs))
