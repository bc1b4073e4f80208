"""The instants of a micro-batch under ZeRO, before it is known which layer is highest at each."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...autograd.peak import PeakParts
from ...ledger.ledger import FIRST, LAST
from ...ledger.num import Num
from ...run.phases import BACKWARD, FORWARD
from ...step.activations import StageWalks
from ...step.layer_groups import LayerGroup
from .block_peaks import Heights, backward_heights, forward_heights
from .peak_tables import Place

IDLE: Heights = ((0, PeakParts()), (0, PeakParts()))


class ZeroInstant(Struct, frozen=True, kw_only=True):
    """An instant before it is known which layer is at work.

    `heights` are the block's own tensors at each level of the table; `kept` are the bytes that one
    waiting layer of the stretch keeps, `saved` all layers that wait, but for those of the stretch.
    """

    name: str
    title: str
    phase: str
    place: Place
    heights: Heights
    saved: tuple[Num, ...]
    label: str
    work: str = "unit"
    stretch: int = 0
    kept: Num = 0
    checkpoint: bool = False
    layer: str = ""  # which of the stretch, as an instant has it


def spots(stack: tuple[LayerGroup, ...], done: StageWalks) -> Iterator[ZeroInstant]:
    """All of a micro-batch."""
    none = tuple(0 for _ in stack)
    yield ZeroInstant(
        name="begin",
        title="forward begins",
        phase=FORWARD,
        place=("begin", 0, False),
        heights=IDLE,
        saved=none,
        label="",
    )
    for index in range(len(stack)):
        yield from _forward(index, stack, done)
    yield from _head(stack, done)
    for index in range(len(stack) - 1, -1, -1):
        yield from _backward(index, stack, done)
    table = done.embedding
    yield ZeroInstant(name="embedding.backward", title="backward of the embedding", phase=BACKWARD,
               place=("embedding", 0, False), saved=none, work="embedding",
               heights=IDLE if table is None else backward_heights(table),
               label="embedding: at work")  # fmt: skip
    yield ZeroInstant(name="epilogue", title="gradients reduced", phase=BACKWARD, heights=IDLE,
               place=("epilogue", 0, False), saved=none, label="",
               work="embedding" if table is None else "hook")  # fmt: skip


def _forward(index: int, stack: tuple[LayerGroup, ...], done: StageWalks) -> Iterator[ZeroInstant]:
    """The first layer of the stretch by itself, the others together."""
    name = "forward" if index == len(stack) - 1 else f"forward.{index}"
    if stack[index].count > 1:
        word = "first" if index == 0 else "lowest"
        end = FIRST if index == 0 else ""
        yield _layer(f"{name}.{word}", ("forward", index, True), stack, done, end)
        yield _layer(name, ("forward", index, False), stack, done)
    else:
        yield _layer(name, ("forward", index, True), stack, done)


def _backward(index: int, stack: tuple[LayerGroup, ...], done: StageWalks) -> Iterator[ZeroInstant]:
    name = f"backward.{index}"
    if stack[index].count > 1:
        yield _layer(f"{name}.last", ("backward", index, False), stack, done, LAST)
        yield _layer(f"{name}.first", ("backward", index, True), stack, done, FIRST)
    else:
        yield _layer(f"{name}.last", ("backward", index, True), stack, done, LAST)


def _head(stack: tuple[LayerGroup, ...], done: StageWalks) -> Iterator[ZeroInstant]:
    script, label = done.head.script, "final norm, logits and loss"
    saved = tuple(block.count for block in stack)
    yield ZeroInstant(
        name="loss",
        title="loss",
        phase=FORWARD,
        place=("loss", 0, False),
        saved=saved,
        heights=forward_heights(script),
        label=label,
        work="loss",
    )
    yield ZeroInstant(
        name="loss.backward",
        title="backward of the loss",
        phase=BACKWARD,
        saved=saved,
        place=("head", 0, False),
        heights=backward_heights(script),
        label=label,
        work="loss",
    )


def _layer(
    name: str, place: Place, stack: tuple[LayerGroup, ...], done: StageWalks, layer: str = ""
) -> ZeroInstant:
    """The layers of a stretch, or its first one."""
    word, index, low = place
    walk, block = done.layers[index], stack[index]
    first = done.first if low and index == 0 and done.first is not None else walk
    full, forward = block.recompute == "full", word == "forward"
    heights = (
        forward_heights(first.once if full else first.script) if forward else
        backward_heights(first.script, again=full, output=full and block.reentrant)
    )  # fmt: skip
    which = "first layer" if low else "highest layer"
    return ZeroInstant(
        name=name, title=f"{word}, {block.title}: {which}", place=place, heights=heights,
        phase=FORWARD if forward else BACKWARD, stretch=index, label=f"{block.title}: at work",
        saved=tuple(b.count if i < index else 0 for i, b in enumerate(stack)),
        kept=walk.input_bytes if full else walk.saved_bytes, checkpoint=full, layer=layer,
    )  # fmt: skip
