"""The micro-batches between the first and the last, where only the last one reduces gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ....ledger.ledger import LATER, MIDDLE
from ....ledger.num import Num, holds
from ...step.instants import StepInstant


def with_middle(instants: Sequence[StepInstant], micro_batches: Num) -> Iterator[StepInstant]:
    """The instants of a step, with those of a micro-batch between the first and the last."""
    later = [i for i in instants if i.instant.micro_batch == LATER]
    for step_instant in instants:
        if later and step_instant is later[0]:
            yield from (_in_middle(one, micro_batches) for one in later)
        yield step_instant


def _in_middle(step_instant: StepInstant, micro_batches: Num) -> StepInstant:
    named = replace(step_instant.instant, micro_batch=MIDDLE)
    moved = named.moved(
        named.where,
        title=named.title.replace(LATER, MIDDLE),
        present=named.present * holds(micro_batches > 2),
        layer=named.layer,
    )
    return replace(step_instant, instant=moved)
