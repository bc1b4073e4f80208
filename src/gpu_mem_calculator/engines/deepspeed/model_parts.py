"""What DeepSpeed sees of a model."""

from __future__ import annotations

from ...autograd.events import BlockEvents
from ...step.activations import StageWalks
from ...step.layer_groups import LayerGroup
from .coordinator import GatherLimits
from .gather import reads
from .hook_points import HookedBlock, backward_part, forward_part
from .layout import ZeroLayout
from .peak_tables import BlockTable
from .stage3 import shape


def model_of(
    plan: ZeroLayout, stack: tuple[LayerGroup, ...], done: StageWalks, limits: GatherLimits
) -> BlockTable:
    """A model's parts."""

    def both(
        script: BlockEvents, once: BlockEvents | None = None
    ) -> tuple[HookedBlock, HookedBlock]:
        return forward_part(once or script), backward_part(script, again=once is not None)

    stretches = tuple(
        (*both(walk.script, walk.once if block.recompute == "full" else None), int(block.count))
        for walk, block in zip(done.layers, stack, strict=True)
    )
    first = None if done.first is None else both(done.first.script)
    table = None if done.embedding is None else backward_part(done.embedding, again=False)
    head = both(done.head.script)
    if plan.stage < 3:
        return BlockTable(stretches, first, head, table)
    walks = (*done.layers, *((done.first,) if done.first else ()), done.head)
    read = tuple(reads(walk.script) for walk in walks)
    return BlockTable(stretches, first, head, table, shape(plan, stack), limits, read)
