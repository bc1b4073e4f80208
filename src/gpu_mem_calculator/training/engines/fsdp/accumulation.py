"""Gradients that micro-batches accumulate before the last one reduces them.

With `sync_each_batch=false` only the last micro-batch of a step reduces. Until then the whole
gradients of every unit stay on the GPU, and later micro-batches add to them. Version 2 keeps one
for each parameter, version 1 a flat one for each unit. torch 2.13 distributed/fsdp:
_fully_shard/_fsdp_param_group.py post_backward, _runtime_utils.py _post_backward_hook.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....ledger.ledger import LATER, MIDDLE
from ....ledger.num import Num, nothing
from ....run.phases import BACKWARD, OPTIMIZER
from ....run.run import Run
from .instants import FsdpInstant
from .options import option


def accumulates(run: Run) -> bool:
    """Whether micro-batches before the last one keep their whole gradients."""
    return not option(run, "sync_each_batch") and not nothing(run.micro_batches - 1)


def reduces(run: Run, instant: FsdpInstant) -> bool:
    """Whether the micro-batch of an instant reduces its gradients."""
    return not accumulates(run) or instant.step.instant.micro_batch == LATER


def adds_shards(run: Run, instant: FsdpInstant) -> bool:
    """Whether an earlier micro-batch has reduced its gradients."""
    return instant.step.later and not accumulates(run)


def accumulated_layers(
    instant: FsdpInstant, top: int, *, made: Sequence[str], freed: Sequence[str] = ()
) -> range:
    """The layers whose accumulated gradients are alive at an instant.

    made: actions at which a layer's exist in the first micro-batch
    freed: actions at which they do not any more in the last one
    """
    named, layer, action = instant.step.instant, instant.layer, instant.action
    if named.phase == OPTIMIZER:
        return range(0)
    if named.phase != BACKWARD:
        return range(top if named.micro_batch else 0)
    if named.micro_batch == MIDDLE:
        return range(top)
    if named.micro_batch == LATER:
        return range(min(layer + (action not in freed), top))
    return range(min(layer + (action not in made), top), top) if layer >= 0 else range(top)


def accumulated_root(
    instant: FsdpInstant, *, made: Sequence[str], freed: Sequence[str] = ()
) -> Num:
    """1 where the accumulated gradients of the root are alive; as in `accumulated_layers`."""
    named, action = instant.step.instant, instant.action
    if named.phase == OPTIMIZER:
        return 0
    if not named.micro_batch:
        return int(named.phase == BACKWARD and action in made)
    return int(action not in freed)


def accumulated_head(instant: FsdpInstant, top: int) -> Num:
    """1 where those of a head that is a unit are alive."""
    named, action = instant.step.instant, instant.action
    if named.phase == OPTIMIZER:
        return 0
    reduced = named.phase == BACKWARD and instant.layer < top
    if not named.micro_batch:
        return int(reduced or action in ("reduce.head", "scatter.head"))
    return int(named.micro_batch == MIDDLE or not (reduced or action == "scatter.head"))
