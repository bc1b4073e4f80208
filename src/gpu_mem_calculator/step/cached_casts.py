"""Weights that autocast has cast, and keeps while forward runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..autograd.events import BlockEvents
from ..ledger.ledger import TEMP, Entry
from ..ledger.num import EMPTY
from ..ledger.source import code
from .instants import Instants
from .layer_groups import LayerGroups


def cached_cast_entries(
    groups: LayerGroups, instants: Instants, forwards: Sequence[BlockEvents]
) -> Iterator[Entry]:
    """16-bit copies of the weights of layers that have run, which autocast keeps until forward
    ends. Without recompute the layers keep them for backward, and they are counted there.

    `forwards`: the events of each group's layer in forward.
    """
    for i, (group, once) in enumerate(zip(groups, forwards, strict=True)):
        if group.checkpointed and once.left:
            yield Entry(
                name=f"{group.title}: 16-bit weights cached by autocast",
                kind=TEMP,
                bytes=sum((once.sizes[tensor] for tensor in once.left), EMPTY),
                live={at.name: at.saved[i] for at in instants if at.inside_forward},
                source=code("torch 2.11 autocast_mode.cpp cached_cast: until autocast exits"),
            )
