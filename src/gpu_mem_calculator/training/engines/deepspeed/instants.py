"""The instants of a micro-batch under ZeRO, before it is known which layer is highest at each."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ....ledger.ledger import FIRST, LAST
from ....ledger.num import EMPTY, Bytes, Num
from ....pytorch.autograd.peak import PeakParts
from ....run.phases import BACKWARD, FORWARD
from ...step.activations import StageWalks
from ...step.layer_groups import LayerGroup
from .block_peaks import BlockPeaks, backward_peaks, forward_peaks
from .peak_tables import Place

IDLE: BlockPeaks = ((0, PeakParts()), (0, PeakParts()))


class ZeroInstant(Struct, frozen=True, kw_only=True):
    """An instant before it is known which layer of a group is at work.

    place: its key in the peak tables
    peaks: bytes of the block's own tensors at each level of the table
    saved: for each layer group, the layers that wait for backward; of the instant's own group 0
    label: the name of the block's entry
    group: index of the layer group
    layer_bytes: bytes that one waiting layer of the group keeps
    checkpoint: the layers are checkpointed
    layer: which layer of the group, as `Instant` has it
    """

    name: str
    title: str
    phase: str
    place: Place
    peaks: BlockPeaks
    saved: tuple[Num, ...]
    label: str
    work: str = "unit"
    group: int = 0
    layer_bytes: Bytes = EMPTY
    checkpoint: bool = False
    layer: str = ""


def zero_instants(stack: tuple[LayerGroup, ...], walks: StageWalks) -> Iterator[ZeroInstant]:
    """The instants of one micro-batch, in order."""
    none = tuple(0 for _ in stack)
    yield ZeroInstant(
        name="begin",
        title="forward begins",
        phase=FORWARD,
        place=("begin", 0, False),
        peaks=IDLE,
        saved=none,
        label="",
    )
    for index in range(len(stack)):
        yield from _forward(index, stack, walks)
    yield from _head(stack, walks)
    for index in range(len(stack) - 1, -1, -1):
        yield from _backward(index, stack, walks)
    table = walks.embedding
    yield ZeroInstant(
        name="embedding.backward",
        title="backward of the embedding",
        phase=BACKWARD,
        place=("embedding", 0, False),
        peaks=IDLE if table is None else backward_peaks(table),
        saved=none,
        label="embedding: at work",
        work="embedding",
    )
    yield ZeroInstant(
        name="epilogue",
        title="gradients reduced",
        phase=BACKWARD,
        place=("epilogue", 0, False),
        peaks=IDLE,
        saved=none,
        label="",
        work="embedding" if table is None else "hook",
    )


def _forward(index: int, stack: tuple[LayerGroup, ...], walks: StageWalks) -> Iterator[ZeroInstant]:
    """The first layer of a group, and the others together."""
    name = "forward" if index == len(stack) - 1 else f"forward.{index}"
    if stack[index].count > 1:
        word = "first" if index == 0 else "lowest"
        end = FIRST if index == 0 else ""
        yield _layer(f"{name}.{word}", ("forward", index, True), stack, walks, end)
        yield _layer(name, ("forward", index, False), stack, walks)
    else:
        yield _layer(name, ("forward", index, True), stack, walks)


def _backward(
    index: int, stack: tuple[LayerGroup, ...], walks: StageWalks
) -> Iterator[ZeroInstant]:
    name = f"backward.{index}"
    if stack[index].count > 1:
        yield _layer(f"{name}.last", ("backward", index, False), stack, walks, LAST)
        yield _layer(f"{name}.first", ("backward", index, True), stack, walks, FIRST)
    else:
        yield _layer(f"{name}.last", ("backward", index, True), stack, walks, LAST)


def _head(stack: tuple[LayerGroup, ...], walks: StageWalks) -> Iterator[ZeroInstant]:
    events, label = walks.head.script, "final norm, logits and loss"
    saved = tuple(group.count for group in stack)
    yield ZeroInstant(
        name="loss",
        title="loss",
        phase=FORWARD,
        place=("loss", 0, False),
        saved=saved,
        peaks=forward_peaks(events),
        label=label,
        work="loss",
    )
    yield ZeroInstant(
        name="loss.backward",
        title="backward of the loss",
        phase=BACKWARD,
        saved=saved,
        place=("head", 0, False),
        peaks=backward_peaks(events),
        label=label,
        work="loss",
    )


def _layer(
    name: str, place: Place, stack: tuple[LayerGroup, ...], walks: StageWalks, layer: str = ""
) -> ZeroInstant:
    """The instant of a group's first layer, or of the highest of its others."""
    word, index, low = place
    walk, group = walks.layers[index], stack[index]
    first = walks.first if low and index == 0 and walks.first is not None else walk
    full, forward = group.recompute == "full", word == "forward"
    if forward:
        peaks = forward_peaks(first.once if full else first.script)
    else:
        peaks = backward_peaks(first.script, again=full, output=full and group.reentrant)
    which = "first layer" if low else "highest layer"
    return ZeroInstant(
        name=name,
        title=f"{word}, {group.title}: {which}",
        place=place,
        peaks=peaks,
        phase=FORWARD if forward else BACKWARD,
        group=index,
        label=f"{group.title}: at work",
        saved=tuple(other.count if i < index else 0 for i, other in enumerate(stack)),
        layer_bytes=walk.input_bytes if full else walk.saved_bytes,
        checkpoint=full,
        layer=layer,
    )
