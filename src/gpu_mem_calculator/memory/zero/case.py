"""A plan of plain numbers, as the key of what is counted once and remembered."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...ledger.num import Num
from .plan import Plan


class Case:
    """A plan, and what else decides a count; equal ones have the same."""

    __slots__ = ("hash", "key", "more", "plan")

    def __init__(self, plan: Plan, more: Any) -> None:
        self.plan, self.more = plan, more
        self.key = (
            more, plan.ranks, plan.run.micro_batches, plan.stage, plan.width, plan.trained_width,
            plan.bucket, plan.overlap, plan.contiguous, plan.offload, plan.offload_param,
            plan.runs, plan.trainable, int(plan.table),
        )  # fmt: skip
        self.hash = hash(self.key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and self.key == other.key


def plain(plan: Plan, ranks: int, micro_batches: int, runs: Any = None) -> Plan:
    """The plan of one element. Micro-batches between the first and the last are alike.

    A keeper counts the elements that the model's configuration gives.
    """
    runs = runs or tuple((sizes, int(units)) for sizes, units in plan.runs)
    elements: Num = sum(sum(sizes) * units for sizes, units in runs)
    run = replace(plan.run, micro_batches=min(micro_batches, 3))
    return replace(plan, run=run, ranks=ranks, runs=runs, trainable=elements)
