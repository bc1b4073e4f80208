"""What stays while forward runs: weights that autocast has cast, and a KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ledger.ledger import CACHE, TEMP, Entry
from ...ledger.num import EMPTY
from ...ledger.source import code
from ...pytorch.autograd.events import BlockEvents
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


def unused_cache_entries(
    groups: LayerGroups, instants: Instants, scripts: Sequence[BlockEvents]
) -> Iterator[Entry]:
    """Keys and values of layers that have run, which the model's output names until forward ends.

    `scripts`: the events of each group's layer.
    """
    for i, (group, script) in enumerate(zip(groups, scripts, strict=True)):
        if script.until_forward_ends and not group.checkpointed:
            yield Entry(
                name=f"{group.title}: KV cache that training does not read",
                kind=CACHE,
                bytes=sum((script.sizes[tensor] for tensor in script.until_forward_ends), EMPTY),
                live={at.name: at.saved[i] for at in instants if at.inside_forward},
                source=code("transformers 5.17.0 cache_utils.py DynamicLayer.update: torch.cat"),
            )
