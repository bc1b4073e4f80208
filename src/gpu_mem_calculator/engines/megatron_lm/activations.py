"""What Megatron's layers keep and need for a moment, as ledger entries of one pipeline stage."""

from __future__ import annotations

from collections.abc import Iterator

from ...autograd.peak import PeakParts
from ...autograd.walk import BlockWalk
from ...ledger.ledger import ACT, GRAD, TEMP, Entry
from ...ledger.num import Num, choose, nothing
from ...ledger.source import Source, code
from ...model.blocks import Moe
from ...run.phases import FORWARD
from ...run.run import Run
from ...step.activations import StageWalks
from ...step.instants import StepInstant
from ...step.layer_groups import LayerGroup
from ...step.pipeline import PipelineStage, waiting_entries
from .model_inputs import surroundings
from .options import setting
from .walks import given

LAYER_CODE = code("megatron-core 0.19.2 transformer layer, walked with autograd's saving rules")
LOSS_CODE = code("megatron-core 0.19.2 tensor_parallel/cross_entropy.py:25-181")
CHECKPOINT_CODE = code("megatron-core 0.19.2 tensor_parallel/random.py: a layer's input is kept")


def activation_entries(
    run: Run, stage: PipelineStage, beats: tuple[StepInstant, ...], done: StageWalks
) -> Iterator[Entry]:
    """Layers, head, embedding, what micro-batches in flight hold, buffers that stay.

    In an unrolled run layers and head play scripts; where chunks interleave, what other
    micro-batches keep is entered.
    """
    for index, block in enumerate(stage.blocks):
        walk = done.layers[index]
        if run.unrolled and run.virtual_stages > 1:
            yield from waiting_entries(index, block, walk, beats, LAYER_CODE, CHECKPOINT_CODE)
        elif not run.unrolled:
            yield _kept(index, block, walk, beats)
            yield from _at_work(index, stage, done, beats)
        if block.recompute == "full" and isinstance(block.layer.mlp, Moe):
            yield _dispatched(index, block, walk, beats)
    if not run.unrolled:
        yield from _head(done.head, beats)
    yield from surroundings(run, setting(run, selective=False), stage, beats)


def _kept(index: int, block: LayerGroup, walk: BlockWalk, beats: tuple[StepInstant, ...]) -> Entry:
    full = block.recompute == "full"
    return Entry(
        name=f"{block.title}: {'checkpointed inputs' if full else 'kept for backward'}",
        kind=ACT,
        bytes=walk.input_bytes if full else walk.saved_bytes,
        live={b.name: b.saved[index] for b in beats},
        source=CHECKPOINT_CODE if full else LAYER_CODE,
        parts=() if full else walk.saved,
    )


def _dispatched(
    index: int, block: LayerGroup, walk: BlockWalk, beats: tuple[StepInstant, ...]
) -> Entry:
    """What a recomputed layer with experts leaves behind until it runs again.

    Its dispatcher names the router's scores, and with them the graph that the checkpoint made:
    the layer's input as a leaf of it, and the gradient of that.
    """
    return Entry(
        name=f"{block.title}: input and its gradient, held by the dispatcher", kind=ACT,
        bytes=2 * walk.input_bytes, live={b.name: b.grads[index] for b in beats},
        source=code("megatron-core 0.19.2 transformer/moe/token_dispatcher.py: self.probs"),
    )  # fmt: skip


def _at_work(
    index: int, stage: PipelineStage, done: StageWalks, beats: tuple[StepInstant, ...]
) -> Iterator[Entry]:
    """The layer at work, at each of its beats."""
    block, walk = stage.blocks[index], done.layers[index]
    for beat in beats:
        if beat.work == "layer" and beat.stretch == index:
            moment = _layer_moment(block, walk, beat)
            if done.first is not None and block.recompute != "full":
                moment = _either(given(stage, beat), done.first.later, moment)
            yield from _working(f"{block.title}: at work", moment, beat, LAYER_CODE)


def _layer_moment(block: LayerGroup, walk: BlockWalk, beat: StepInstant) -> PeakParts:
    """The layer at work. A checkpoint runs it again beside the gradient it was given, and holds
    the output that this makes (tensor_parallel/random.py CheckpointFunction).
    """
    full = block.recompute == "full"
    if beat.instant.phase == FORWARD:
        return walk.transient if full else walk.forward
    if not full:
        return walk.later
    again, back = walk.forward, walk.later
    rerun = PeakParts(again.act + walk.input_bytes, 0, again.temp)
    return rerun.or_higher(back.act + walk.input_bytes, back.grad, back.temp)


def _either(condition: Num, yes: PeakParts, no: PeakParts) -> PeakParts:
    """One moment or the other."""
    return PeakParts(choose(condition, yes.act, no.act), choose(condition, yes.grad, no.grad),
                  choose(condition, yes.temp, no.temp))  # fmt: skip


def _working(name: str, moment: PeakParts, beat: StepInstant, source: Source) -> Iterator[Entry]:
    parts = ((name, ACT, moment.act), (f"{name}, weight gradients", GRAD, moment.grad),
             (f"{name}, kernel workspace", TEMP, moment.temp))  # fmt: skip
    for title, kind, size in parts:
        if not nothing(size):
            yield Entry(name=title, kind=kind, bytes=size, live={beat.name: 1}, source=source)


def _head(walk: BlockWalk, beats: tuple[StepInstant, ...]) -> Iterator[Entry]:
    for beat in beats:
        if beat.work == "head":
            moment = walk.forward if beat.instant.phase == FORWARD else walk.later
            yield from _working("final norm, logits and loss", moment, beat, LOSS_CODE)
