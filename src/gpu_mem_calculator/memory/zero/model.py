"""What DeepSpeed sees of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ..activations import Walks
from ..script import Script
from ..stack import Block
from .coordinator import Limits
from .cues import Part, backward_part, forward_part
from .gathering import reads
from .plan import Plan
from .stage3 import shape
from .tables import Model

_remembered_forward = lru_cache(maxsize=512)(forward_part)
_remembered_backward = lru_cache(maxsize=512)(backward_part)


def model_of(
    plan: Plan, stack: tuple[Block, ...], done: Walks, limits: Limits, *, plain: bool
) -> Model:
    """A model's parts; `plain`: all sizes are ints."""
    forward: Callable[[Script], Part] = _remembered_forward if plain else forward_part
    backward: Callable[..., Part] = _remembered_backward if plain else backward_part

    def both(script: Script, once: Script | None = None) -> tuple[Part, Part]:
        return forward(once or script), backward(script, again=once is not None)

    stretches = tuple(
        (*both(walk.script, walk.once if block.recompute == "full" else None), int(block.count))
        for walk, block in zip(done.layers, stack, strict=True)
    )
    first = None if done.first is None else both(done.first.script)
    table = None if done.embedding is None else backward(done.embedding, again=False)
    head = both(done.head.script)
    if plan.stage < 3:
        return Model(stretches, first, head, table)
    walks = (*done.layers, *((done.first,) if done.first else ()), done.head)
    read = tuple(reads(walk.script) for walk in walks)
    return Model(stretches, first, head, table, shape(plan, stack), limits, read)
