"""Activations when the head's first gradient is made, where gradients stay on the rank."""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.ledger import ACT, GRAD, Entry
from ....ledger.num import larger, nothing
from ....ledger.source import code
from ...step.activations import StageWalks
from .layout import ZeroLayout

WAITS = "head: gradient that waits for the embedding's"
SOURCE = code(
    "torch 2.11 autograd: a gradient's hook runs when its operation has freed its tensors"
)


def first_hook(plan: ZeroLayout) -> int:
    """Index of the head's gradient whose hook runs first: 1 if a shared table's waits, else 0."""
    return 0 if nothing(plan.table) else 1


def hook_entries(plan: ZeroLayout, walks: StageWalks) -> Iterator[Entry]:
    """The head's activations at its first gradient, which is alive while the final norm runs
    backward.

    The gradient of a shared table is counted with those that stay in the first micro-batch; in a
    later one it waits for the embedding's gradient.
    """
    first = first_hook(plan)
    for instant in plan.instants:
        if instant.instant.where != "head.gradient":
            continue
        _, act = walks.head.hooks[first]
        if not first:  # the final norm's backward comes after it
            act = larger(act, walks.head.after_first)
        elif instant.later:
            name, source = WAITS, code("torch 2.11 csrc/autograd/input_buffer.cpp")
            yield Entry(name, GRAD, plan.table, {instant.name: 1}, source)
        yield Entry("final norm and head: kept for backward", ACT, act, {instant.name: 1}, SOURCE)
