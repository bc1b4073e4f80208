"""What is at work when the head's first gradient is made, where gradients stay on the rank."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import ACT, GRAD, Entry
from ...ledger.num import larger, nothing
from ...ledger.source import code
from ...step.activations import StageWalks
from .layout import ZeroLayout

SOURCE = code("torch 2.11 autograd: a gradient's hook runs when its operation has let go")


def first_hook(plan: ZeroLayout) -> int:
    """Which of the head's gradients reaches its hook first: not a shared table's, which waits."""
    return 0 if nothing(plan.table) else 1


def hook_entries(plan: ZeroLayout, done: StageWalks) -> Iterator[Entry]:
    """Activations at the first gradient; the head's is there while the final norm runs backward.

    Of a shared table the first micro-batch's gradient is among those that stay; that of a later
    one waits for the embedding's.
    """
    first = first_hook(plan)
    for beat in plan.beats:
        if beat.instant.where != "head.gradient":
            continue
        _, act = done.head.hooks[first]
        if not first:  # the final norm's backward comes behind it
            act = larger(act, done.head.after_first)
        elif beat.later:
            yield Entry(name="head: gradient that waits for the embedding's", kind=GRAD,
                        bytes=plan.table, live={beat.name: 1},
                        source=code("torch 2.11 csrc/autograd/input_buffer.cpp"))  # fmt: skip
        yield Entry(name="final norm and head: kept for backward", kind=ACT, bytes=act,
                    live={beat.name: 1}, source=SOURCE)  # fmt: skip
