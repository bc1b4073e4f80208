"""The instants of a step under FSDP version 1.

Tensors are allocated and freed in the order of the host. A unit is gathered before its forward and
freed after it. In backward the layer below is gathered first (`backward_pre`), after the layer's
gradients exist (`backward_post`), or when it is needed (`none`). A layer's gradients are copied
into a flat one when all of them exist. The root is gathered once a step, and reduces last.
torch 2.13 distributed/fsdp/_runtime_utils.py: _pre_forward to _post_backward_hook.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from .....ledger.ledger import LAST
from .....ledger.num import Num
from .....run.phases import BACKWARD, FORWARD
from ....step.instants import StepInstant, step
from ....step.layer_groups import LayerGroups
from ..instants import FsdpInstant, block_instant, forward_instant, unit_instant, without_saved
from ..micro_batches import with_middle
from ..waiting_layers import layer_count, waiting_layers

PRE, POST, NONE = "backward_pre", "backward_post", "none"


class FlatShape(Struct, frozen=True, kw_only=True):
    """What decides which instants a step has.

    prefetch: when the layer below is gathered in backward: PRE, POST or NONE
    ahead: the next layer is gathered before a layer's forward
    every: instants of all layers and all actions, not only of those that may be the peak
    loss_outside: the loss is computed once the root has returned
    accumulates: only the last micro-batch reduces gradients
    """

    prefetch: str
    ahead: bool
    every: bool
    loss_outside: bool = False
    accumulates: bool = False


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
    ranges = tuple(group.stretch for group in stack)
    instants: list[FsdpInstant] = []
    steps = step(ranges, micro_batches=micro_batches)
    for step_instant in with_middle(steps, micro_batches) if shape.accumulates else steps:
        instants += _with_actions(step_instant, stack, shape)
    return without_saved(instants, stack) if shape.every else instants


def _with_actions(base: StepInstant, stack: LayerGroups, shape: FlatShape) -> Iterator[FsdpInstant]:
    top = layer_count(stack)
    if base.work == "layer" and base.instant.phase == FORWARD:
        yield from _forward(base, stack, shape)
    elif base.work == "layer":
        yield from _backward(base, stack, shape)
    elif base.work == "head" and base.instant.phase == BACKWARD:
        if shape.prefetch == PRE and not shape.loss_outside:
            yield _block(base, "prefetch", "gather the last layer", top)
        yield FsdpInstant(base, "loss.backward", top)
    elif base.work == "head":
        yield FsdpInstant(base, "loss", top)
    elif base.work == "embedding":
        yield FsdpInstant(base, "embedding", -1)
        for action in ("flatten", "reduce", "scatter"):
            if action != "reduce" or shape.every:
                name, title = f"{action}.root", f"{action} the root's gradients"
                yield FsdpInstant(unit_instant(base, name, title), name, -1)
    else:
        yield FsdpInstant(base, "optimizer", -1)


def _forward(base: StepInstant, stack: LayerGroups, shape: FlatShape) -> Iterator[FsdpInstant]:
    """The root is gathered, then layer after layer; `base` is the last layer's forward."""
    yield from _gather_root(base, stack, shape)
    last = layer_count(stack) - 1
    for layer, word, title, end, waiting in waiting_layers(stack, every=shape.every):
        if not shape.ahead:
            flat = unit_instant(base, f"gather.{word}", f"gather {title}", end, **waiting)
            yield FsdpInstant(flat, "flat", layer)
        if shape.ahead and layer < last:
            words = f"gather the layer after {title}"
            ahead = unit_instant(base, f"gather.after.{word}", words, **waiting)
            yield FsdpInstant(ahead, "ahead", layer)
        yield forward_instant(base, layer, title, waiting, last=layer == last)


def _gather_root(base: StepInstant, stack: LayerGroups, shape: FlatShape) -> Iterator[FsdpInstant]:
    """The root is gathered before the first layer; in an unrolled run also in the first step, where
    every unit's buffers are made and freed before.
    """
    none = tuple(0 for _ in stack)
    first_step = replace(base, instant=base.instant.in_first_step())
    for one in (base, first_step) if shape.every and not base.later else (base,):
        if shape.every and not base.later:
            lazy = unit_instant(one, "forward.lazy", "make buffers", saved=none, work="")
            yield FsdpInstant(lazy, "lazy", -1)
        if shape.every:
            root = unit_instant(one, "forward.root", "gather the root", saved=none, work="")
            yield FsdpInstant(root, "root.flat", -1)
        if shape.ahead:
            words = "gather the first layer with the root"
            ahead = unit_instant(one, "gather.first", words, saved=none, work="")
            yield FsdpInstant(ahead, "root.ahead", -1)


def _backward(base: StepInstant, stack: LayerGroups, shape: FlatShape) -> Iterator[FsdpInstant]:
    """A layer at one end of its group: gathered again, run backward, reduced."""
    low, count = layer_count(stack[: base.stretch]), int(stack[base.stretch].count)
    top = base.instant.layer == LAST
    if not top and count == 1:
        return
    layer = low + count - 1 if top else low
    title = base.instant.title
    saved = tuple(n + (j == base.stretch) for j, n in enumerate(base.saved))
    gathers = shape.prefetch == NONE or (shape.prefetch == POST and layer == layer_count(stack) - 1)
    if gathers:
        yield _block(base, "gather", f"{title}, gather", layer, "regather", saved=saved)
    if shape.prefetch == PRE and layer > 0:
        yield _block(base, "prefetch", f"{title}, gather the layer below", layer, saved=saved)
    yield FsdpInstant(base, "layer", layer)
    yield _block(base, "flatten", f"{title}, flatten", layer)
    if shape.prefetch == POST and layer > 0:
        yield _block(base, "after", f"{title}, gather the layer below", layer)
    if shape.every:
        yield _block(base, "reduce", f"{title}, reduce", layer)
    yield _block(base, "scatter", f"{title}, scatter", layer)


def _block(
    base: StepInstant, name: str, title: str, layer: int, action: str = "", **changes: object
) -> FsdpInstant:
    return FsdpInstant(block_instant(base, name, title, **changes), action or name, layer)
