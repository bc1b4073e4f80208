"""The instants of a step under FSDP2, and which units are gathered or being reduced at each.

Tensors are allocated and freed in the order of the host, which is the order the allocator sees. In
forward the all-gather buffer of a layer stays until the next layer's parameters are copied out of
its own. In backward the next layer's buffer is filled while this one computes, and the
reduce-scatter input of the layer above stays until this one needs its own (torch 2.13
F/_fsdp_param_group.py:429-489, 584, 647).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import FIRST, LAST, LATER, MIDDLE, Instant
from ....ledger.num import Num, holds
from ....run.phases import FORWARD, STARTUP
from ...step.instants import Instants, StepInstant, step
from ...step.layer_groups import LayerGroup, LayerGroups

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
    """What decides which instants a step has, in either version.

    every: instants of all layers and all actions, not only of those that may be the peak
    accumulates: only the last micro-batch reduces gradients
    """

    every: bool
    accumulates: bool


class FsdpShape(StepShape, frozen=True, kw_only=True):
    """What decides which instants a step of version 2 has.

    reshards_root: the root is resharded after forward, and gathered again for backward
    reshards_layers: the layers are
    casts: shards are cast before they are gathered
    single_rank: a shard group may have one rank
    offload: shards are on the host
    replicas: reduce-scatter's outputs stay until backward is over, to be all-reduced
    ends: embedding and head are units of their own
    gathers_after_loss: the last layer is gathered once the loss has run backward
    """

    reshards_root: bool
    reshards_layers: bool
    casts: bool
    single_rank: bool
    offload: bool
    replicas: bool
    ends: bool
    gathers_after_loss: bool


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


def fsdp_instants(stack: LayerGroups, micro_batches: Num, shape: FsdpShape) -> list[FsdpInstant]:
    """The instants of a step, with FSDP's own between them."""
    adds_up = shape.replicas and not shape.every  # the outputs of a group's layers, up to its first
    actions = partial(_with_actions, stack, shape)
    return step_with(actions, stack, micro_batches, shape, both_ends=adds_up)


def step_with(
    actions: Callable[[StepInstant], Iterable[FsdpInstant]],
    stack: LayerGroups,
    micro_batches: Num,
    shape: StepShape,
    *,
    both_ends: bool = False,
) -> list[FsdpInstant]:
    """The instants of a step, each with what FSDP does before and after it, its `actions`. In an
    unrolled run the blocks' events contain what they keep.
    """
    ranges = tuple(group.stretch for group in stack)
    steps: Iterable[StepInstant] = step(ranges, micro_batches=micro_batches, both_ends=both_ends)
    if shape.accumulates:
        steps = _with_middle(tuple(steps), micro_batches)
    instants = [instant for one in steps for instant in actions(one)]
    if not shape.every:
        return instants
    none = tuple(0 for _ in stack)
    return [
        replace(i, step=replace(i.step, saved=none)) if i.step.work == UNIT else i for i in instants
    ]


def _with_middle(instants: Instants, micro_batches: Num) -> Iterator[StepInstant]:
    """The instants of a step, with those of a micro-batch between the first and the last: only the
    last one reduces gradients.
    """
    later = [i for i in instants if i.instant.micro_batch == LATER]
    for step_instant in instants:
        if later and step_instant is later[0]:
            yield from (_in_middle(one, micro_batches) for one in later)
        yield step_instant


def _in_middle(step_instant: StepInstant, micro_batches: Num) -> StepInstant:
    named = replace(step_instant.instant, micro_batch=MIDDLE)
    moved = named.moved(
        named.where,
        title=named.title.replace(LATER, MIDDLE),
        present=named.present * holds(micro_batches > 2),
        layer=named.layer,
    )
    return replace(step_instant, instant=moved)


def _with_actions(stack: LayerGroups, shape: FsdpShape, base: StepInstant) -> Iterator[FsdpInstant]:
    """One instant of the step, with what FSDP does before and after it."""
    forward = base.instant.phase == FORWARD
    if base.work == "layer":
        yield from (_forward if forward else _backward)(base, stack, shape)
    elif base.work == "head":
        yield from (_head if forward else _loss_backward)(base, stack, shape)
    elif base.work == "embedding":
        if shape.ends and shape.reshards_layers:
            yield at_unit(base, "gather.embedding", "gather the embedding again", "root.again", -1)
        yield FsdpInstant(base, "embedding", -1)
        yield reduced_at(base, "reduce", "root", -1)
        yield reduced_at(base, "scatter", "root", -1)
    else:
        yield FsdpInstant(base, "optimizer", -1)


def _head(base: StepInstant, stack: LayerGroups, shape: FsdpShape) -> Iterator[FsdpInstant]:
    """The head is gathered, where it is a unit, and the loss is computed."""
    top = layer_count(stack)
    if shape.ends:
        waiting: dict[str, Any] = {"inside_forward": True, "stretch": len(stack) - 1}
        if shape.every or shape.casts:
            where, title = "gather.head.flat", "gather the head, flat"
            yield at_unit(base, where, title, "head.flat", top, **waiting)
        yield at_unit(base, "gather.head", "gather the head", "head", top, **waiting)
    yield FsdpInstant(base, "loss", top)


def _forward(base: StepInstant, stack: LayerGroups, shape: FsdpShape) -> Iterator[FsdpInstant]:
    """The root is gathered, then layer after layer; `base` is the last layer's forward."""
    yield from _gather_root(base, stack, shape)
    for layer, word, title, end, waiting in waiting_layers(stack, every=shape.every):
        if shape.every or shape.offload:
            where = f"gather.{word}.flat"
            yield at_unit(base, where, f"gather {title}, flat", "flat", layer, **waiting)
        yield at_unit(base, f"gather.{word}", f"gather {title}", "gather", layer, end, **waiting)
        yield forward_instant(base, layer, title, waiting, last=layer == layer_count(stack) - 1)


def _gather_root(base: StepInstant, stack: LayerGroups, shape: FsdpShape) -> Iterator[FsdpInstant]:
    """The root is gathered before the first layer; in an unrolled run in the first step, too."""
    idle: dict[str, Any] = {"saved": tuple(0 for _ in stack), "work": ""}
    for one in with_first_step(base, every=shape.every):
        if shape.every or shape.offload:
            where, title = "forward.root.flat", "gather the root, flat"
            yield at_unit(one, where, title, "root.flat", -1, **idle)
        if shape.every or shape.single_rank:
            yield at_unit(one, "forward.root", "gather the root", "root", -1, **idle)
        if shape.every and shape.ends:
            yield at_unit(one, "forward.root.out", "the embedding", "root.out", -1, **idle)


def with_first_step(base: StepInstant, *, every: bool) -> Instants:
    """An instant of forward; in an unrolled run in the first step, too."""
    first_step = replace(base, instant=base.instant.in_first_step())
    return (base, first_step) if every and not base.later else (base,)


def forward_instant(
    base: StepInstant, layer: int, title: str, waiting: dict[str, Any], *, last: bool
) -> FsdpInstant:
    """A layer runs forward; `base` is the last layer's forward, `waiting` as above."""
    if last:
        return FsdpInstant(base, "forward", layer)
    working = {**waiting, "work": "layer", "inside_forward": True}
    words = f"forward, {title.removeprefix('the ')}"
    return at_unit(base, f"forward.{layer}", words, "forward", layer, **working)


def _loss_backward(
    base: StepInstant, stack: LayerGroups, shape: FsdpShape
) -> Iterator[FsdpInstant]:
    """The root is gathered again, the last layer's buffer is filled, the loss runs backward.

    A unit of the head waits for the gradient of its logits before it fills that buffer, and so does
    a root that has returned before the loss: the highest moment of the loss is over then.
    """
    top = layer_count(stack)
    if not (shape.ends or shape.gathers_after_loss):
        if shape.reshards_root:
            if shape.every or shape.offload:
                where, title = "gather.root.flat", "gather the root again, flat"
                yield at_unit(base, where, title, "root.flat", top)
            yield at_unit(base, "gather.root", "gather the root again", "root", top)
        yield from _prefetch(base, top, shape)
    yield FsdpInstant(base, "loss.backward", top)
    if shape.ends:
        yield reduced_at(base, "reduce", "head", top)
        yield reduced_at(base, "scatter", "head", top)


def _prefetch(
    base: StepInstant, layer: int, shape: FsdpShape, **changes: Any
) -> Iterator[FsdpInstant]:
    """The layer below is gathered; the first layer has none."""
    lowest = -1 if shape.ends else 0  # the unit below the first layer is the embedding
    if shape.reshards_layers and layer > lowest and (shape.every or shape.casts):
        yield at_block(base, "prefetch", "gather the layer below", layer, **changes)


def _backward(base: StepInstant, stack: LayerGroups, shape: FsdpShape) -> Iterator[FsdpInstant]:
    """A layer at one end of its group: gathered again, run backward, reduced."""
    for layer, saved in end_layer(base, stack):
        if shape.reshards_layers:
            yield at_block(base, "gather", "gather", layer, "regather", saved=saved)
            yield from _prefetch(base, layer, shape, saved=saved)
        yield FsdpInstant(base, "layer", layer)
        yield at_block(base, "reduce", "reduce", layer)
        yield at_block(base, "scatter", "scatter", layer)


def end_layer(base: StepInstant, stack: LayerGroups) -> Iterator[tuple[int, tuple[Num, ...]]]:
    """The layer at one end of its group that runs backward, and what is saved before; none at the
    lower end of a group of one layer.
    """
    low, count = layer_count(stack[: base.stretch]), int(stack[base.stretch].count)
    top = base.instant.layer == LAST
    if top or count > 1:
        saved = tuple(n + (j == base.stretch) for j, n in enumerate(base.saved))
        yield (low + count - 1 if top else low), saved


def at_unit(
    base: StepInstant,
    where: str,
    title: str,
    action: str,
    layer: int,
    end: str = "",
    **changes: Any,
) -> FsdpInstant:
    """An instant of the same micro-batch at which no block computes. `end`: of the model that the
    layer is at.
    """
    word = f", {base.instant.micro_batch} micro-batch" if base.later else ""
    moved = base.instant.moved(where, title=title + word, layer=end)
    return FsdpInstant(replace(base, instant=moved, **{"work": UNIT, **changes}), action, layer)


def reduced_at(base: StepInstant, action: str, unit: str, layer: int) -> FsdpInstant:
    """A unit that is no layer works on its gradients."""
    name = f"{action}.{unit}"
    return at_unit(base, name, f"{action} the {unit}'s gradients", name, layer)


def at_block(
    base: StepInstant, name: str, words: str, layer: int, action: str = "", **changes: Any
) -> FsdpInstant:
    """An instant just before or after the block of `base` computes, at which FSDP works for it."""
    title = f"{base.instant.title}, {words}"
    moved = base.instant.moved(f"{base.instant.where}.{name}", title=title)
    at = replace(base, instant=moved, **{"work": UNIT, **changes})
    return FsdpInstant(at, action or name, layer)


def layer_count(stack: Iterable[LayerGroup]) -> int:
    """Layers of these groups."""
    return sum(int(group.count) for group in stack)


def waiting_layers(
    stack: LayerGroups, *, every: bool
) -> Iterator[tuple[int, str, str, str, dict[str, Any]]]:
    """The layers whose forward has instants: number, word in names, title, which end of the model
    it is, and the fields of an instant before it runs.
    """
    counts = tuple(int(group.count) for group in stack)
    lows = list(accumulate(counts, initial=0))
    last = lows[-1] - 1
    for layer, index in _forward_layers(stack, every=every):
        saved = (*counts[:index], layer - lows[index], *(0 for _ in counts[index + 1 :]))
        word = "first" if layer == 0 else "last" if layer == last else f"{layer}"
        title = f"the {word} layer" if word in ("first", "last") else f"layer {layer}"
        end = {"first": FIRST, "last": LAST}.get(word, "")
        fields = {"saved": saved, "stretch": index, "inside_forward": layer > 0}
        yield layer, word, title, end, fields


def _forward_layers(stack: LayerGroups, *, every: bool) -> list[tuple[int, int]]:
    """Layers whose forward has instants, each with the index of its group.

    Saved activations only grow in forward, so of equal layers that follow equal layers the last
    one is the highest.
    """
    chosen: dict[object, tuple[int, int]] = {}
    before: object = None
    layer = 0
    for index, group in enumerate(stack):
        kind = (id(group.layer), group.window, group.recompute)
        for _ in range(int(group.count)):
            chosen[layer if every else (before, kind)] = (layer, index)
            before, layer = kind, layer + 1
    return sorted(chosen.values())
