"""What DeepSpeed sees of a model."""

from __future__ import annotations

from ...autograd.events import Script
from ...step.activations import Walks
from ...step.layer_groups import Block
from .coordinator import Limits
from .gather import reads
from .hook_points import Part, backward_part, forward_part
from .layout import Plan
from .peak_tables import Model
from .stage3 import shape


def model_of(plan: Plan, stack: tuple[Block, ...], done: Walks, limits: Limits) -> Model:
    """A model's parts."""

    def both(script: Script, once: Script | None = None) -> tuple[Part, Part]:
        return forward_part(once or script), backward_part(script, again=once is not None)

    stretches = tuple(
        (*both(walk.script, walk.once if block.recompute == "full" else None), int(block.count))
        for walk, block in zip(done.layers, stack, strict=True)
    )
    first = None if done.first is None else both(done.first.script)
    table = None if done.embedding is None else backward_part(done.embedding, again=False)
    head = both(done.head.script)
    if plan.stage < 3:
        return Model(stretches, first, head, table)
    walks = (*done.layers, *((done.first,) if done.first else ()), done.head)
    read = tuple(reads(walk.script) for walk in walks)
    return Model(stretches, first, head, table, shape(plan, stack), limits, read)
