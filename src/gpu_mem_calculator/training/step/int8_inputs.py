"""What bitsandbytes' int8 matmuls keep although a checkpoint or backward would free it."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import ACT, Entry
from ...ledger.num import Num, nothing
from ...ledger.source import code
from ...pytorch.autograd.walk import BlockWalk
from ...run.phases import BACKWARD
from .instants import Instants
from .layer_groups import LayerGroup


def int8_inputs(
    index: int, group: LayerGroup, walk: BlockWalk, instants: Instants
) -> Iterator[Entry]:
    """The inputs of a group's int8 projections, held by the graph.

    After a layer's backward it stays until all of backward ends. A checkpoint that is not
    reentrant keeps it from forward on; a reentrant one runs forward without a graph.
    """
    if nothing(walk.pinned):
        return
    full = group.recompute == "full"
    live: dict[str, Num] = {}
    for i in instants:
        running = 1 if i.work == "layer" and i.stretch == index and not full else 0
        finished = group.count - i.saved[index] - running
        if i.instant.phase == BACKWARD and not (full and group.reentrant):
            live[i.name] = finished
        if full and not group.reentrant:
            live[i.name] = live.get(i.name, 0) + i.saved[index]
    yield Entry(
        name=f"{group.title}: inputs of int8 projections, held by the graph",
        kind=ACT,
        bytes=walk.pinned,
        live=live,
        source=code("bitsandbytes 0.50.2 autograd/_functions.py MatMul8bitLt: ctx.tensors"),
    )
