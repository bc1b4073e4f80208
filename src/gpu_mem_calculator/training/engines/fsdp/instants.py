"""The instants of a step under FSDP2, and which units are gathered or being reduced at each.

Tensors are allocated and freed in the order of the host, which is the order the allocator sees. In
forward the all-gather buffer of a layer stays until the next layer's parameters are copied out of
its own. In backward the next layer's buffer is filled while this one computes, and the
reduce-scatter input of the layer above stays until this one needs its own (torch 2.13
F/_fsdp_param_group.py:429-489, 584, 647).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import LAST, Instant
from ....ledger.num import Num
from ....run.phases import BACKWARD, FORWARD, STARTUP
from ...step.instants import StepInstant, step
from ...step.layer_groups import LayerGroup, LayerGroups
from .micro_batches import with_middle
from .waiting_layers import layer_count, waiting_layers

UNIT = "unit"  # what runs where no block computes
START = Instant(name="startup", phase=STARTUP, title="start-up: shards allocated")


class FsdpInstant(Struct, frozen=True):
    """An instant of a step, what FSDP does then, and at which layer of the model.

    `action`, in forward: "root.flat" (the root's shards are gathered into a flat buffer), "root"
    (and copied out of it), for each layer "flat", "gather" and "forward", then "loss". In
    backward: "root.flat" and "root" again, "prefetch" (the layer below is gathered into its flat
    buffer; `layer` is the number of layers while the root is at work), "loss.backward", for each
    layer "regather", "prefetch", "layer", "reduce" (gradients are copied into reduce-scatter's
    input) and "scatter" (its output is made), then "embedding", "reduce.root", "scatter.root".
    Last "optimizer".

    Where embedding and head are units, the root is the embedding. "root.out" comes after its
    forward, "root.again" before its backward. The head has "head.flat" and "head" before the loss,
    and "reduce.head" and "scatter.head" after the loss's backward.
    """

    step: StepInstant
    action: str
    layer: int


class StepShape(Struct, frozen=True, kw_only=True):
    """What decides which instants a step has.

    reshards_root: the root is resharded after forward, and gathered again for backward
    reshards_layers: the layers are
    casts: shards are cast before they are gathered
    single_rank: a shard group may have one rank
    offload: shards are on the host
    replicas: reduce-scatter's outputs stay until backward is over, to be all-reduced
    ends: embedding and head are units of their own
    gathers_after_loss: the last layer is gathered once the loss has run backward
    accumulates: only the last micro-batch reduces gradients
    every: instants of all layers and all actions, not only of those that may be the peak
    """

    reshards_root: bool
    reshards_layers: bool
    casts: bool
    single_rank: bool
    offload: bool
    replicas: bool
    every: bool
    ends: bool = False
    gathers_after_loss: bool = False
    accumulates: bool = False


def ends_apart(stack: LayerGroups) -> LayerGroups:
    """The layer groups, with the first and the last layer of a group split off where their
    neighbours are of another kind or there are none.

    The last layer of the model has no reduce-scatter above it and the first no gather below it, so
    the highest instant of the group between them is again at one of its ends.
    """
    groups: list[LayerGroup] = []
    for index, group in enumerate(stack):
        rest, name = int(group.count), group.title.removesuffix("s")
        before = stack[index - 1].layer if index else None
        after = stack[index + 1].layer if index < len(stack) - 1 else None
        if before is not group.layer and rest > 1:
            groups.append(replace(group, count=1, title=f"first {name}"))
            rest -= 1
        apart = after is not group.layer and rest > 1
        if rest > 0:
            groups.append(replace(group, count=rest - apart))
        if apart:
            groups.append(replace(group, count=1, title=f"last {name}"))
    return tuple(groups)


def fsdp_instants(stack: LayerGroups, micro_batches: Num, shape: StepShape) -> list[FsdpInstant]:
    """The instants of a step, with FSDP's own between them."""
    ranges = tuple(group.stretch for group in stack)
    instants: list[FsdpInstant] = []
    adds_up = shape.replicas and not shape.every  # the outputs of a group's layers, up to its first
    steps = step(ranges, micro_batches=micro_batches, both_ends=adds_up)
    for step_instant in with_middle(steps, micro_batches) if shape.accumulates else steps:
        instants += _with_actions(step_instant, stack, shape)
    return without_saved(instants, stack) if shape.every else instants


def without_saved(instants: list[FsdpInstant], stack: LayerGroups) -> list[FsdpInstant]:
    """The instants of an unrolled run: the blocks' events contain what they keep."""
    none = tuple(0 for _ in stack)
    return [
        replace(i, step=replace(i.step, saved=none)) if i.step.work == UNIT else i for i in instants
    ]


def _with_actions(base: StepInstant, stack: LayerGroups, shape: StepShape) -> Iterator[FsdpInstant]:
    """One instant of the step, with what FSDP does before and after it."""
    if base.work == "layer" and base.instant.phase == FORWARD:
        yield from _forward(base, stack, shape)
    elif base.work == "layer":
        yield from _backward(base, stack, shape)
    elif base.work == "head" and base.instant.phase == BACKWARD:
        yield from _loss_backward(base, layer_count(stack), shape)
    elif base.work == "head":
        yield from _head(base, stack, shape)
    elif base.work == "embedding":
        if shape.ends and shape.reshards_layers:
            again = unit_instant(base, "gather.embedding", "gather the embedding again")
            yield FsdpInstant(again, "root.again", -1)
        yield FsdpInstant(base, "embedding", -1)
        reduce = unit_instant(base, "reduce.root", "reduce the root's gradients")
        yield FsdpInstant(reduce, "reduce.root", -1)
        scatter = unit_instant(base, "scatter.root", "scatter the root's gradients")
        yield FsdpInstant(scatter, "scatter.root", -1)
    else:
        yield FsdpInstant(base, "optimizer", -1)


def _head(base: StepInstant, stack: LayerGroups, shape: StepShape) -> Iterator[FsdpInstant]:
    """The head is gathered, where it is a unit, and the loss is computed."""
    top = layer_count(stack)
    if shape.ends:
        waiting: dict[str, Any] = {"inside_forward": True, "stretch": len(stack) - 1}
        if shape.every or shape.casts:
            flat = unit_instant(base, "gather.head.flat", "gather the head, flat", **waiting)
            yield FsdpInstant(flat, "head.flat", top)
        gather = unit_instant(base, "gather.head", "gather the head", **waiting)
        yield FsdpInstant(gather, "head", top)
    yield FsdpInstant(base, "loss", top)


def _forward(base: StepInstant, stack: LayerGroups, shape: StepShape) -> Iterator[FsdpInstant]:
    """The root is gathered, then layer after layer; `base` is the last layer's forward."""
    yield from _gather_root(base, stack, shape)
    for layer, word, title, end, waiting in waiting_layers(stack, every=shape.every):
        if shape.every or shape.offload:
            flat = unit_instant(base, f"gather.{word}.flat", f"gather {title}, flat", **waiting)
            yield FsdpInstant(flat, "flat", layer)
        gather = unit_instant(base, f"gather.{word}", f"gather {title}", end, **waiting)
        yield FsdpInstant(gather, "gather", layer)
        yield forward_instant(base, layer, title, waiting, last=layer == layer_count(stack) - 1)


def _gather_root(base: StepInstant, stack: LayerGroups, shape: StepShape) -> Iterator[FsdpInstant]:
    """The root is gathered before the first layer; in an unrolled run in the first step, too."""
    none = tuple(0 for _ in stack)
    first_step = replace(base, instant=base.instant.in_first_step())
    both = shape.every and not base.later
    for one in (base, first_step) if both else (base,):
        if shape.every or shape.offload:
            flat = unit_instant(
                one, "forward.root.flat", "gather the root, flat", saved=none, work=""
            )
            yield FsdpInstant(flat, "root.flat", -1)
        if shape.every or shape.single_rank:
            root = unit_instant(one, "forward.root", "gather the root", saved=none, work="")
            yield FsdpInstant(root, "root", -1)
        if shape.every and shape.ends:
            out = unit_instant(one, "forward.root.out", "the embedding", saved=none, work="")
            yield FsdpInstant(out, "root.out", -1)


def forward_instant(
    base: StepInstant, layer: int, title: str, waiting: dict[str, Any], *, last: bool
) -> FsdpInstant:
    """A layer runs forward; `base` is the last layer's forward, `waiting` as above."""
    if last:
        return FsdpInstant(base, "forward", layer)
    working = {**waiting, "work": "layer", "inside_forward": True}
    words = f"forward, {title.removeprefix('the ')}"
    return FsdpInstant(unit_instant(base, f"forward.{layer}", words, **working), "forward", layer)


def _loss_backward(base: StepInstant, top: int, shape: StepShape) -> Iterator[FsdpInstant]:
    """The root is gathered again, the last layer's buffer is filled, the loss runs backward.

    A unit of the head waits for the gradient of its logits before it fills that buffer, and so does
    a root that has returned before the loss: the highest moment of the loss is over then.
    """
    if shape.ends:
        yield FsdpInstant(base, "loss.backward", top)
        reduce = unit_instant(base, "reduce.head", "reduce the head's gradients")
        yield FsdpInstant(reduce, "reduce.head", top)
        scatter = unit_instant(base, "scatter.head", "scatter the head's gradients")
        yield FsdpInstant(scatter, "scatter.head", top)
        return
    if shape.gathers_after_loss:
        yield FsdpInstant(base, "loss.backward", top)
        return
    if shape.reshards_root:
        if shape.every or shape.offload:
            flat = unit_instant(base, "gather.root.flat", "gather the root again, flat")
            yield FsdpInstant(flat, "root.flat", top)
        root = unit_instant(base, "gather.root", "gather the root again")
        yield FsdpInstant(root, "root", top)
    yield from _prefetch(base, top, shape)
    yield FsdpInstant(base, "loss.backward", top)


def _prefetch(
    base: StepInstant, layer: int, shape: StepShape, **changes: object
) -> Iterator[FsdpInstant]:
    """The layer below is gathered; the first layer has none."""
    lowest = -1 if shape.ends else 0  # the unit below the first layer is the embedding
    if shape.reshards_layers and layer > lowest and (shape.every or shape.casts):
        title = f"{base.instant.title}, gather the layer below"
        yield FsdpInstant(block_instant(base, "prefetch", title, **changes), "prefetch", layer)


def _backward(base: StepInstant, stack: LayerGroups, shape: StepShape) -> Iterator[FsdpInstant]:
    """A layer at one end of its group: gathered again, run backward, reduced."""
    low, count = layer_count(stack[: base.stretch]), int(stack[base.stretch].count)
    top = base.instant.layer == LAST
    if not top and count == 1:
        return
    layer = low + count - 1 if top else low
    title = base.instant.title
    if shape.reshards_layers:
        saved = tuple(n + (j == base.stretch) for j, n in enumerate(base.saved))
        gather = block_instant(base, "gather", f"{title}, gather", saved=saved)
        yield FsdpInstant(gather, "regather", layer)
        yield from _prefetch(base, layer, shape, saved=saved)
    yield FsdpInstant(base, "layer", layer)
    yield FsdpInstant(block_instant(base, "reduce", f"{title}, reduce"), "reduce", layer)
    yield FsdpInstant(block_instant(base, "scatter", f"{title}, scatter"), "scatter", layer)


def unit_instant(
    base: StepInstant, where: str, title: str, layer: str = "", **changes: object
) -> StepInstant:
    """An instant of the same micro-batch at which no block computes."""
    word = f", {base.instant.micro_batch} micro-batch" if base.later else ""
    moved = base.instant.moved(where, title=title + word, layer=layer)
    return replace(base, instant=moved, **{"work": UNIT, **changes})


def block_instant(base: StepInstant, action: str, title: str, **changes: object) -> StepInstant:
    """An instant just before or after the block of `base` computes, at which FSDP works for it."""
    moved = base.instant.moved(f"{base.instant.where}.{action}", title=title)
    return replace(base, instant=moved, **{"work": UNIT, **changes})
