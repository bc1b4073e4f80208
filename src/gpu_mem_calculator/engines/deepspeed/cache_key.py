"""A plan of plain numbers, as the key of what is counted once and remembered."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from msgspec.structs import replace

from ...ledger.num import Num
from .layout import ZeroLayout

UNREAD = frozenset(("run", "beats", "frozen", "layers", "pinned", "first", "last"))
"""Fields of a plan that no keeper reads while it counts; of the run, those of RUN are read."""
RUN = ("micro_batches", "optimizer", "precision")
FIELDS = tuple(name for name in ZeroLayout.__struct_fields__ if name not in UNREAD)


class CacheKey:
    """The key of a count: a plan, and what else decides the count. Equal keys have equal counts."""

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
    """A field as part of a key."""
    return tuple(value.items()) if isinstance(value, dict) else value


def plain(plan: ZeroLayout, ranks: int, micro_batches: int, runs: Any = None) -> ZeroLayout:
    """The plan of one element. Micro-batches between the first and the last are alike.

    A keeper counts the elements that the model's configuration gives.
    """
    runs = runs or tuple((sizes, int(units)) for sizes, units in plan.runs)
    elements: Num = sum(sum(sizes) * units for sizes, units in runs)
    run = replace(plan.run, micro_batches=min(micro_batches, 3))
    return replace(plan, run=run, ranks=ranks, runs=runs, trainable=elements)
