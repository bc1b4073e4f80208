"""The instants of a step under FSDP2, and which units are gathered or being reduced at each.

Lifetimes are in the order of the host, which is the order the allocator sees. In forward the
all-gather buffer of a layer stays until the next layer's parameters are copied out of its own.
In backward the next layer's buffer is filled while this one computes, and the reduce-scatter
input of the layer above stays until this one needs its own (torch 2.13
F/_fsdp_param_group.py:429-489, 584, 647).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import FIRST, LAST
from ...ledger.num import Num
from ...run.phases import BACKWARD, FORWARD
from ...step.instants import StepInstant, step
from ...step.layer_groups import LayerGroup

UNIT = "unit"  # what runs where no block computes


class FsdpInstant(Struct, frozen=True):
    """A beat, what FSDP does then, and at which layer of the stack.

    `at`, in forward: "root.flat" (the root's shards are gathered into a flat buffer), "root"
    (and copied out of it), for each layer "flat", "gather" and "forward", then "loss". In
    backward: "root.flat" and "root" again, "prefetch" (the layer below is gathered into its flat
    buffer; the layer is one behind the last while the root is at work), "loss.backward", for each
    layer "regather", "prefetch", "layer", "reduce" (gradients are copied into reduce-scatter's
    input) and "scatter" (its output is made), then "embedding", "reduce.root", "scatter.root".
    Last "optimizer".
    """

    beat: StepInstant
    at: str
    layer: int


class StepShape(Struct, frozen=True, kw_only=True):
    """What decides which moments a step has.

    `root_again`: the root is resharded after forward; `prefetches`: layers are. `casts`: shards
    are cast before they are gathered. `every`: all layers and all moments, not only those of
    which one may be the highest.
    """

    root_again: bool
    prefetches: bool
    casts: bool
    alone: bool  # a shard group may have one rank
    offload: bool
    every: bool


def ends_apart(blocks: tuple[LayerGroup, ...]) -> tuple[LayerGroup, ...]:
    """The first and the last layer of a stretch as blocks of their own, where their neighbours
    are of another kind or there are none.

    The last of a stack has no reduce-scatter above it and the first no gather below it, so the
    highest instant of the stretch between them is at one of its ends again.
    """
    found: list[LayerGroup] = []
    for index, block in enumerate(blocks):
        rest, name = int(block.count), block.title.removesuffix("s")
        before = blocks[index - 1].layer if index else None
        behind = blocks[index + 1].layer if index < len(blocks) - 1 else None
        if before is not block.layer and rest > 1:
            found.append(replace(block, count=1, title=f"first {name}"))
            rest -= 1
        apart = behind is not block.layer and rest > 1
        if rest > 0:
            found.append(replace(block, count=rest - apart))
        if apart:
            found.append(replace(block, count=1, title=f"last {name}"))
    return tuple(found)


def spots(
    blocks: tuple[LayerGroup, ...], micro_batches: Num, course: StepShape
) -> list[FsdpInstant]:
    """The beats of a step with FSDP's own moments between them."""
    stretches = tuple(block.stretch for block in blocks)
    found: list[FsdpInstant] = []
    for beat in step(stretches, micro_batches=micro_batches):
        found += _around(beat, blocks, course)
    if course.every:  # scripts have what waits
        none = tuple(0 for _ in blocks)
        found = [replace(s, beat=replace(s.beat, saved=none)) if s.beat.work == UNIT else s
                 for s in found]  # fmt: skip
    return found


def _around(
    beat: StepInstant, blocks: tuple[LayerGroup, ...], course: StepShape
) -> Iterator[FsdpInstant]:
    """One beat of the step, with what FSDP does before or after it."""
    if beat.work == "layer" and beat.instant.phase == FORWARD:
        yield from _forward(beat, blocks, course)
    elif beat.work == "layer":
        yield from _backward(beat, blocks, course)
    elif beat.work == "head" and beat.instant.phase == BACKWARD:
        yield from _loss_backward(beat, _count(blocks), course)
    elif beat.work == "head":
        yield FsdpInstant(beat, "loss", _count(blocks))
    elif beat.work == "embedding":
        yield FsdpInstant(beat, "embedding", -1)
        yield FsdpInstant(
            _other(beat, "reduce.root", "reduce the root's gradients"), "reduce.root", -1
        )
        yield FsdpInstant(
            _other(beat, "scatter.root", "scatter the root's gradients"), "scatter.root", -1
        )
    else:
        yield FsdpInstant(beat, "optimizer", -1)


def _count(blocks: Iterable[LayerGroup]) -> int:
    return sum(int(block.count) for block in blocks)


def _forward(
    beat: StepInstant, blocks: tuple[LayerGroup, ...], course: StepShape
) -> Iterator[FsdpInstant]:
    """The root is gathered, then layer after layer; `beat` is the last one's."""
    none = tuple(0 for _ in blocks)
    alone = beat.instant.in_first_step()
    both = course.every and not beat.later
    for one in (beat, replace(beat, instant=alone)) if both else (beat,):
        if course.every or course.offload:
            yield FsdpInstant(_other(one, "forward.root.flat", "gather the root, flat",
                              saved=none, work=""), "root.flat", -1)  # fmt: skip
        if course.every or course.alone:
            yield FsdpInstant(_other(one, "forward.root", "gather the root", saved=none, work=""),
                       "root", -1)  # fmt: skip
    last = _count(blocks) - 1
    for layer, stretch in _forward_layers(blocks, every=course.every):
        low = _count(blocks[:stretch])
        saved = tuple(int(b.count) if j < stretch else layer - low if j == stretch else 0
                      for j, b in enumerate(blocks))  # fmt: skip
        word = "first" if layer == 0 else "last" if layer == last else f"{layer}"
        title = f"the {word} layer" if word in ("first", "last") else f"layer {layer}"
        here: dict[str, Any] = {"saved": saved, "stretch": stretch, "inside_forward": layer > 0}
        if course.every or course.offload:
            yield FsdpInstant(_other(beat, f"gather.{word}.flat", f"gather {title}, flat", **here),
                       "flat", layer)  # fmt: skip
        end = {"first": FIRST, "last": LAST}.get(word, "")
        yield FsdpInstant(
            _other(beat, f"gather.{word}", f"gather {title}", end, **here), "gather", layer
        )
        if layer == last:
            yield FsdpInstant(beat, "forward", layer)
        else:
            own = {**here, "work": "layer", "inside_forward": True}
            yield FsdpInstant(
                _other(beat, f"forward.{layer}", f"forward, {title}", **own), "forward", layer
            )


def _forward_layers(blocks: tuple[LayerGroup, ...], *, every: bool) -> list[tuple[int, int]]:
    """Layers whose forward has instants, each with its stretch.

    What is kept only grows, so of equal layers behind equal layers the last one is the highest.
    """
    found: dict[object, tuple[int, int]] = {}
    before: object = None
    layer = 0
    for stretch, block in enumerate(blocks):
        kind = (id(block.layer), block.window, block.recompute)
        for _ in range(int(block.count)):
            found[layer if every else (before, kind)] = (layer, stretch)
            before, layer = kind, layer + 1
    return sorted(found.values())


def _loss_backward(beat: StepInstant, top: int, course: StepShape) -> Iterator[FsdpInstant]:
    """The root is gathered again, the last layer's buffer is filled, the loss goes backward."""
    if course.root_again:
        if course.every or course.offload:
            yield FsdpInstant(_other(beat, "gather.root.flat", "gather the root again, flat"),
                       "root.flat", top)  # fmt: skip
        yield FsdpInstant(_other(beat, "gather.root", "gather the root again"), "root", top)
    yield from _prefetch(beat, top, course)
    yield FsdpInstant(beat, "loss.backward", top)


def _prefetch(
    beat: StepInstant, layer: int, course: StepShape, **changes: object
) -> Iterator[FsdpInstant]:
    """Below it no other layer is."""
    if course.prefetches and layer > 0 and (course.every or course.casts):
        title = f"{beat.instant.title}, gather the layer below"
        yield FsdpInstant(_around_it(beat, "prefetch", title, **changes), "prefetch", layer)


def _backward(
    beat: StepInstant, blocks: tuple[LayerGroup, ...], course: StepShape
) -> Iterator[FsdpInstant]:
    """A layer at one end of its stretch."""
    low, count = _count(blocks[: beat.stretch]), int(blocks[beat.stretch].count)
    top = beat.instant.layer == LAST
    if not top and count == 1:
        return
    layer = low + count - 1 if top else low
    title = beat.instant.title
    if course.prefetches:
        kept = tuple(n + (j == beat.stretch) for j, n in enumerate(beat.saved))
        yield FsdpInstant(
            _around_it(beat, "gather", f"{title}, gather", saved=kept), "regather", layer
        )
        yield from _prefetch(beat, layer, course, saved=kept)
    yield FsdpInstant(beat, "layer", layer)
    yield FsdpInstant(_around_it(beat, "reduce", f"{title}, reduce"), "reduce", layer)
    yield FsdpInstant(_around_it(beat, "scatter", f"{title}, scatter"), "scatter", layer)


def _other(
    beat: StepInstant, where: str, title: str, layer: str = "", **changes: object
) -> StepInstant:
    """A beat of the same micro-batch at which no block computes."""
    word = ", later micro-batch" if beat.later else ""
    made = beat.instant.moved(where, title=title + word, layer=layer)
    return replace(beat, instant=made, **{"work": UNIT, **changes})


def _around_it(beat: StepInstant, what: str, title: str, **changes: object) -> StepInstant:
    """What FSDP does for the block of this beat, just before or after it computes."""
    made = beat.instant.moved(f"{beat.instant.where}.{what}", title=title)
    return replace(beat, instant=made, **{"work": UNIT, **changes})
