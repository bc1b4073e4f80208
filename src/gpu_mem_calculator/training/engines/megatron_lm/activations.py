"""Activations of one pipeline stage of Megatron: what blocks save, and the block at work."""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.ledger import ACT, GRAD, TEMP, Entry
from ....ledger.num import EMPTY, Num, choose, nothing
from ....ledger.source import Source, code
from ....models.arch.blocks import Moe
from ....pytorch.autograd.peak import PeakParts
from ....pytorch.autograd.walk import BlockWalk
from ....run.phases import FORWARD
from ....run.recompute import FULL, SELECTIVE
from ....run.run import Run
from ...step.activations import StageWalks
from ...step.instants import Instants, StepInstant
from ...step.layer_groups import LayerGroup
from ...step.layer_walks import LayerSources
from ...step.pipeline import PipelineStage
from .walks import sent_gradient

DISPATCHER_CODE = code("megatron-core 0.19.2 transformer/moe/token_dispatcher.py: self.probs")


def layer_entries(
    run: Run, stage: PipelineStage, instants: Instants, walks: StageWalks
) -> Iterator[Entry]:
    """Entries of layers. In an unrolled run the events of blocks contain theirs."""
    for index, group in enumerate(stage.blocks):
        walk = walks.layers[index]
        if not run.unrolled:
            yield _saved_entry(index, group, walk, instants, walks.sources)
            yield from _layer_entries(index, stage, walks, instants)
        if isinstance(group.layer.mlp, Moe) and _experts_recomputed(group):
            yield _dispatcher_entry(index, group, walk, instants)


def head_entries(
    run: Run, stage: PipelineStage, instants: Instants, head: BlockWalk, source: Source
) -> Iterator[Entry]:
    """Entries of the head. In an unrolled run the events of blocks contain them."""
    name = "final norm, logits and loss"
    for instant in () if run.unrolled else instants:
        if instant.work == "head":
            peak = head.forward if instant.instant.phase == FORWARD else head.later
            yield from _peak_entries(name, peak, instant, source)
    if run.unrolled or nothing(stage.losses):
        return
    # what the losses of other micro-batches keep, where several wait for their backward
    live = {i.name: stage.losses for i in instants if i.work}
    sizes = tuple(size for _, size in head.saved)
    title, size = f"{name}: kept by micro-batches in flight", sum(sizes, EMPTY)
    yield Entry(title, ACT, size, live, source, tensors=lambda: sizes)


def _saved_entry(
    index: int, group: LayerGroup, walk: BlockWalk, instants: Instants, sources: LayerSources
) -> Entry:
    live = {i.name: i.saved[index] for i in instants}
    if group.recompute == FULL:
        name = f"{group.title}: checkpointed inputs"
        return Entry(name, ACT, walk.input_bytes, live, sources.checkpoint)
    name = f"{group.title}: kept for backward"
    return Entry(name, ACT, walk.saved_bytes, live, sources.layer, parts=walk.saved)


def _experts_recomputed(group: LayerGroup) -> bool:
    """Whether a checkpoint is around the experts: the layer's, or their own."""
    alone = group.recompute == SELECTIVE and "moe" in group.rule.modules
    return group.recompute == FULL or alone


def _dispatcher_entry(index: int, group: LayerGroup, walk: BlockWalk, instants: Instants) -> Entry:
    """What a recomputed layer with experts keeps after its backward, until it runs again.

    Its dispatcher refers to the router's scores, and with them to the graph that the checkpoint
    made: the input of the layer or of its experts as a leaf of it, and the gradient of that.
    """
    name = f"{group.title}: input and its gradient, held by the dispatcher"
    live = {i.name: i.grads[index] for i in instants}
    return Entry(name, ACT, 2 * walk.input_bytes, live, DISPATCHER_CODE)


def _layer_entries(
    index: int, stage: PipelineStage, walks: StageWalks, instants: Instants
) -> Iterator[Entry]:
    """The working set of a group's layer at each of its instants."""
    group, walk = stage.blocks[index], walks.layers[index]
    for instant in instants:
        if instant.work == "layer" and instant.stretch == index:
            peak = _layer_peak(group, walk, instant)
            if walks.first is not None and group.recompute != FULL:
                peak = _either(sent_gradient(stage, instant), walks.first.later, peak)
            yield from _peak_entries(f"{group.title}: at work", peak, instant, walks.sources.layer)


def _layer_peak(group: LayerGroup, walk: BlockWalk, instant: StepInstant) -> PeakParts:
    """The peak of the layer at work. A checkpoint runs it again while the output's gradient is
    alive, and keeps the output of that forward (tensor_parallel/random.py CheckpointFunction).
    """
    full = group.recompute == FULL
    if instant.instant.phase == FORWARD:
        return walk.transient if full else walk.forward
    if not full:
        return walk.later
    again, back = walk.forward, walk.later
    rerun = PeakParts(again.act + walk.input_bytes, EMPTY, again.temp)
    return rerun.or_higher(back.act + walk.input_bytes, back.grad, back.temp)


def _either(condition: Num, yes: PeakParts, no: PeakParts) -> PeakParts:
    """`yes` where the condition is 1, else `no`."""
    pairs = ((yes.act, no.act), (yes.grad, no.grad), (yes.temp, no.temp))
    return PeakParts(*(choose(condition, one, other) for one, other in pairs))


def _peak_entries(
    name: str, peak: PeakParts, instant: StepInstant, source: Source
) -> Iterator[Entry]:
    parts = (
        (name, ACT, peak.act),
        (f"{name}, weight gradients", GRAD, peak.grad),
        (f"{name}, kernel workspace", TEMP, peak.temp),
    )
    for title, kind, size in parts:
        if not nothing(size):
            yield Entry(title, kind, size, {instant.name: 1}, source)
