"""The instants of a micro-batch under ZeRO, before it is known which layer is highest at each, with
the peak bytes of one block's tensors between and at the points where DeepSpeed's hooks run.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ....ledger.ledger import FIRST, LAST
from ....ledger.num import EMPTY, Bytes, Num
from ....ledger.remember import remembered
from ....pytorch.autograd.events import BlockEvents
from ....pytorch.autograd.peak import PeakParts, PeakTracker
from ....run.phases import BACKWARD, FORWARD
from ....run.recompute import FULL
from ...step.activations import StageWalks
from ...step.layer_groups import LayerGroups
from .hook_points import HookPoint, all_hook_points, forward_hook_points, weight_gradients
from .peak_tables import Place

BlockPeaks = tuple[tuple[Num, PeakParts], ...]  # bytes in all, and by kind


def _peaks(
    block: BlockEvents,
    events: tuple[int, ...],
    hook_points: list[HookPoint],
    act: Bytes,
    left_out: tuple[int, ...],
) -> BlockPeaks:
    """Two for each hook point: the peak since the one before, and the bytes at it. Then the peak
    after the last one.

    events: of the block's forward or backward
    act: bytes of activations that are alive before the first event
    left_out: tensors that are not counted
    """
    sizes, work, out = block.sizes, frozenset(block.work), frozenset(left_out)
    peaks: list[tuple[Num, PeakParts]] = []
    temp = EMPTY
    passed = 0
    for position in (*(point[0] for point in hook_points), len(events)):
        high = PeakTracker(act, EMPTY, temp)
        for event in events[passed:position]:
            tensor = event if event >= 0 else ~event
            if tensor in out:
                continue
            size = sizes[tensor] if event >= 0 else -sizes[tensor]
            if tensor in work:
                temp = temp + size
            else:
                act = act + size
            if event >= 0:
                high.see(act, EMPTY, temp)
        passed = max(passed, position)
        peaks += [(high.total, high.moment), (act + temp, PeakParts(act, EMPTY, temp))]
    return tuple(peaks[:-1])


@remembered(512)
def forward_peaks(block: BlockEvents, more: Bytes = EMPTY) -> BlockPeaks:
    """The peaks of a block's forward. `more`: bytes that are alive all the while."""
    return _peaks(block, block.forward, forward_hook_points(block), block.entry_bytes + more, ())


@remembered(512)
def backward_peaks(block: BlockEvents, *, again: bool = False, output: bool = False) -> BlockPeaks:
    """The peaks of a block's backward, without the gradients of its weights.

    again: the block runs forward again before, and the peaks of that come first
    output: the output of that forward stays alive
    """
    gradient = block.sizes[block.exit_grad]
    points, out = all_hook_points(block), weight_gradients(block)
    if block.exit < 0:  # the embedding's
        return _peaks(block, block.backward, points, gradient, out)
    act = gradient + (block.sizes[block.exit] if output else EMPTY) + _saved_bytes(block)
    peaks = _peaks(block, block.backward, points, act, out)
    gradients = gradient + block.before_recompute()
    return (*forward_peaks(block, gradients), *peaks) if again else peaks


def _saved_bytes(block: BlockEvents) -> Bytes:
    """Bytes that forward leaves for backward, without the output, which is the next block's."""
    given = sum((block.sizes[tensor] for tensor in block.given), EMPTY)
    total = block.sizes[block.entry] - block.sizes[block.exit] + given
    for event in block.forward:
        total = total + (block.sizes[event] if event >= 0 else -block.sizes[~event])
    return total


IDLE: BlockPeaks = ((0, PeakParts()), (0, PeakParts()))


class ZeroInstant(Struct, frozen=True):
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
    saved: tuple[Num, ...]
    peaks: BlockPeaks = IDLE
    label: str = ""
    work: str = "unit"
    group: int = 0
    layer_bytes: Bytes = EMPTY
    checkpoint: bool = False
    layer: str = ""


def zero_instants(stack: LayerGroups, walks: StageWalks) -> Iterator[ZeroInstant]:
    """The instants of one micro-batch, in order."""
    none = tuple(0 for _ in stack)
    yield ZeroInstant("begin", "forward begins", FORWARD, ("begin", 0, False), none)
    for index in range(len(stack)):
        yield from _forward(index, stack, walks)
    yield from _head(stack, walks)
    for index in range(len(stack) - 1, -1, -1):
        yield from _backward(index, stack, walks)
    table, place = walks.embedding, ("embedding", 0, False)
    yield ZeroInstant(
        "embedding.backward",
        "backward of the embedding",
        BACKWARD,
        place,
        none,
        IDLE if table is None else backward_peaks(table),
        label="embedding: at work",
        work="embedding",
    )
    place, work = ("epilogue", 0, False), "embedding" if table is None else "hook"
    yield ZeroInstant("epilogue", "gradients reduced", BACKWARD, place, none, work=work)


def _forward(index: int, stack: LayerGroups, walks: StageWalks) -> Iterator[ZeroInstant]:
    """The first layer of a group, and the others together."""
    name = "forward" if index == len(stack) - 1 else f"forward.{index}"
    if several := stack[index].count > 1:
        word, end = ("lowest", "") if index else ("first", FIRST)
        yield _layer(f"{name}.{word}", ("forward", index, True), stack, walks, end)
    yield _layer(name, ("forward", index, not several), stack, walks)


def _backward(index: int, stack: LayerGroups, walks: StageWalks) -> Iterator[ZeroInstant]:
    several, name = stack[index].count > 1, f"backward.{index}"
    yield _layer(f"{name}.last", ("backward", index, not several), stack, walks, LAST)
    if several:
        yield _layer(f"{name}.first", ("backward", index, True), stack, walks, FIRST)


def _head(stack: LayerGroups, walks: StageWalks) -> Iterator[ZeroInstant]:
    events, label = walks.head.script, "final norm, logits and loss"
    saved = tuple(group.count for group in stack)
    for name, title, phase, place, peaks in (
        ("loss", "loss", FORWARD, "loss", forward_peaks(events)),
        ("loss.backward", "backward of the loss", BACKWARD, "head", backward_peaks(events)),
    ):
        yield ZeroInstant(name, title, phase, (place, 0, False), saved, peaks, label, "loss")


def _layer(
    name: str, place: Place, stack: LayerGroups, walks: StageWalks, layer: str = ""
) -> ZeroInstant:
    """The instant of a group's first layer, or of the highest of its others."""
    word, index, low = place
    walk, group = walks.layers[index], stack[index]
    first = walks.first if low and index == 0 and walks.first is not None else walk
    full, forward = group.recompute == FULL, word == "forward"
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
