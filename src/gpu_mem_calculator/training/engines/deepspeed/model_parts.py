"""The blocks of a model with DeepSpeed's hook points, as the peak tables need them."""

from __future__ import annotations

from ....pytorch.autograd.events import BlockEvents
from ...step.activations import StageWalks
from ...step.layer_groups import LayerGroup
from .coordinator import GatherLimits
from .gather import weight_reads
from .hook_points import HookedBlock, hooked_backward, hooked_forward
from .layout import ZeroLayout
from .peak_tables import BlockTable
from .stage3 import shape


def block_table(
    plan: ZeroLayout, stack: tuple[LayerGroup, ...], walks: StageWalks, limits: GatherLimits
) -> BlockTable:
    """The hooked blocks of a model; in stage 3 with its modules and the weights they read."""

    def both(
        events: BlockEvents, once: BlockEvents | None = None
    ) -> tuple[HookedBlock, HookedBlock]:
        return hooked_forward(once or events), hooked_backward(events, again=once is not None)

    groups = tuple(
        (*both(walk.script, walk.once if group.recompute == "full" else None), int(group.count))
        for walk, group in zip(walks.layers, stack, strict=True)
    )
    first = None if walks.first is None else both(walks.first.script)
    table = None if walks.embedding is None else hooked_backward(walks.embedding, again=False)
    head = both(walks.head.script)
    if plan.stage < 3:
        return BlockTable(groups, first, head, table)
    readers = (*walks.layers, *((walks.first,) if walks.first else ()), walks.head)
    reads = tuple(weight_reads(walk.script) for walk in readers)
    return BlockTable(groups, first, head, table, shape(plan, stack), limits, reads)
