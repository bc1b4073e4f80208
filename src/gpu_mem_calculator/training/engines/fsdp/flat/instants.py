"""The instants of a step under FSDP version 1.

Tensors are allocated and freed in the order of the host. A unit is gathered before its forward and
freed after it. In backward the layer below is gathered first (`backward_pre`), after the layer's
gradients exist (`backward_post`), or when it is needed (`none`). A layer's gradients are copied
into a flat one when all of them exist. The root is gathered once a step, and reduces last.
torch 2.13 distributed/fsdp/_runtime_utils.py: _pre_forward to _post_backward_hook.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from .....ledger.num import Num
from .....run.phases import FORWARD
from ....step.instants import StepInstant
from ....step.layer_groups import LayerGroups
from ..instants import (
    FsdpInstant,
    StepShape,
    at_block,
    at_unit,
    end_layer,
    forward_instant,
    layer_count,
    reduced_at,
    step_with,
    waiting_layers,
    with_first_step,
)

PRE, POST, NONE = "backward_pre", "backward_post", "none"


class FlatShape(StepShape, frozen=True, kw_only=True):
    """What decides which instants a step of version 1 has.

    prefetch: when the layer below is gathered in backward: PRE, POST or NONE
    ahead: the next layer is gathered before a layer's forward
    loss_outside: the loss is computed once the root has returned
    """

    prefetch: str
    ahead: bool
    loss_outside: bool


def flat_instants(stack: LayerGroups, micro_batches: Num, shape: FlatShape) -> list[FsdpInstant]:
    """The instants of a step.

    Actions in forward: "lazy" (in the first step, buffers are allocated and freed), "root.flat"
    (the root is gathered), "root.ahead" (so is the first layer), for each layer "flat" (it is
    gathered), "ahead" (the next one is) and "forward", then "loss". In backward "loss.backward",
    for each layer "regather" (it is gathered), "prefetch" (the one below is), "layer", "flatten"
    (the flat gradient is allocated), "after" (the layer is freed and the one below gathered),
    "reduce" (the gradient is cast and padded) and "scatter" (this rank's part is allocated), then
    "embedding" and the last actions for the root. Last "optimizer".
    """
    return step_with(partial(_with_actions, stack, shape), stack, micro_batches, shape)


def _with_actions(stack: LayerGroups, shape: FlatShape, base: StepInstant) -> Iterator[FsdpInstant]:
    top, forward = layer_count(stack), base.instant.phase == FORWARD
    if base.work == "layer":
        yield from (_forward if forward else _backward)(base, stack, shape)
    elif base.work == "head":
        if not forward and shape.prefetch == PRE and not shape.loss_outside:
            title = "gather the last layer again"
            yield at_unit(base, "loss.backward.prefetch", title, "prefetch", top)
        yield FsdpInstant(base, "loss" if forward else "loss.backward", top)
    elif base.work == "embedding":
        yield FsdpInstant(base, "embedding", -1)
        for action in ("flatten", "reduce", "scatter") if shape.every else ("flatten", "scatter"):
            yield reduced_at(base, action, "root", -1)
    else:
        yield FsdpInstant(base, "optimizer", -1)


def _forward(base: StepInstant, stack: LayerGroups, shape: FlatShape) -> Iterator[FsdpInstant]:
    """The root is gathered, then layer after layer; `base` is the last layer's forward."""
    yield from _gather_root(base, stack, shape)
    last = layer_count(stack) - 1
    for layer, word, title, end, waiting in waiting_layers(stack, every=shape.every):
        if not shape.ahead:
            yield at_unit(base, f"gather.{word}", f"gather {title}", "flat", layer, end, **waiting)
        elif layer < last:
            where, words = f"gather.after.{word}", f"gather the layer after {title}"
            yield at_unit(base, where, words, "ahead", layer, **waiting)
        yield forward_instant(base, layer, title, waiting, last=layer == last)


def _gather_root(base: StepInstant, stack: LayerGroups, shape: FlatShape) -> Iterator[FsdpInstant]:
    """The root is gathered before the first layer; in an unrolled run also in the first step, where
    every unit's buffers are made and freed before.
    """
    idle: dict[str, Any] = {"saved": tuple(0 for _ in stack), "work": ""}
    for one in with_first_step(base, every=shape.every):
        if shape.every and not base.later:
            yield at_unit(one, "forward.lazy", "make buffers", "lazy", -1, **idle)
        if shape.every:
            yield at_unit(one, "forward.root", "gather the root", "root.flat", -1, **idle)
        if shape.ahead:
            words = "gather the first layer with the root"
            yield at_unit(one, "gather.first", words, "root.ahead", -1, **idle)


def _backward(base: StepInstant, stack: LayerGroups, shape: FlatShape) -> Iterator[FsdpInstant]:
    """A layer at one end of its group: gathered again, run backward, reduced."""
    below = "gather the layer below"
    for layer, saved in end_layer(base, stack):
        last = layer == layer_count(stack) - 1
        if shape.prefetch == NONE or (shape.prefetch == POST and last):
            yield at_block(base, "gather", "gather", layer, "regather", saved=saved)
        if shape.prefetch == PRE and layer > 0:
            yield at_block(base, "prefetch", below, layer, saved=saved)
        yield FsdpInstant(base, "layer", layer)
        yield at_block(base, "flatten", "flatten", layer)
        if shape.prefetch == POST and layer > 0:
            yield at_block(base, "after", below, layer)
        if shape.every:
            yield at_block(base, "reduce", "reduce", layer)
        yield at_block(base, "scatter", "scatter", layer)
