"""The walks of one pipeline stage of Megatron: its layers' and the head's."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ....ledger.ledger import LAST
from ....ledger.num import SINGLE, Num, holds, nothing
from ....ledger.remember import remembered
from ....ledger.source import Source, code
from ....pytorch.autograd.events import BlockEvents
from ....pytorch.autograd.walk import BlockWalk
from ....pytorch.modelling.megatron import head as megatron_head
from ....pytorch.modelling.megatron import layer as megatron_layer
from ....pytorch.modelling.others import nanotron
from ....run.phases import BACKWARD
from ....run.ranks import distinct_ranks, spread
from ....run.recompute import FULL, SELECTIVE
from ....run.run import Run
from ...losses import DEFAULT, LOSSES, MEGATRON, kernel
from ...step.activations import FREE_AT_ONCE, StageWalks
from ...step.instants import StepInstant
from ...step.layer_groups import LayerGroup
from ...step.layer_walks import LayerSources, layer_sources
from ...step.pipeline import PipelineStage
from .options import is_nanotron, shares_gradient
from .options import setting as megatron_setting
from .shards import local_vocab

SOURCES = LayerSources(
    code("megatron-core 0.19.2 transformer layer, walked with autograd's saving rules"),
    LOSSES[DEFAULT].kernels[MEGATRON].source,
    code("megatron-core 0.19.2 tensor_parallel/random.py: a layer's input is kept"),
)


def walks(run: Run, stage: PipelineStage) -> StageWalks:
    """The walks of every distinct layer and of the head. Weight gradients are added to the main
    buffer at once.

    `first` of the result is here the layer that runs backward first, where another stage sends the
    gradient of its output; an unrolled run has it among the layers.
    """
    rank, places = distinct_ranks(run)
    layers = tuple(
        _layer(rank, group, sent=i in stage.receiving) for i, group in enumerate(stage.blocks)
    )
    sent = None
    if not nothing(1 - stage.loss):
        sent = _layer(rank, stage.blocks[-1], sent=True)
    if run.unrolled and sent is not None:
        layers, sent = (*layers[:-1], sent), None
    head, source = head_of_loss(run)
    sources = layer_sources(run.arch, replace(SOURCES, head=source))
    if places is not None:
        layers = tuple(_spread_walk(walk, places) for walk in layers)
        sent = sent and _spread_walk(sent, places)
    return StageWalks(layers, head, sent, FREE_AT_ONCE, sources=sources)


NO_EVENTS = BlockEvents(sizes=(), entry=-1, exit=-1, forward=())


def _spread_walk(walk: BlockWalk, places: Any) -> BlockWalk:
    """The walk of an array of runs from that of each distinct rank, without the events of blocks:
    what is kept for backward is one tensor.
    """
    kept = replace(
        walk, saved=(("", walk.saved_bytes),), hooks=(), once=NO_EVENTS, script=NO_EVENTS
    )
    return spread(kept, places)


def head_of_loss(run: Run) -> tuple[BlockWalk, Source]:
    """The walk of the head, and where it is from."""
    rank, places = distinct_ranks(run)
    head_walk = _nanotron_head if is_nanotron(run) else _megatron_head
    setting, loss = megatron_setting(rank, selective=False), kernel(run, MEGATRON)
    alone = isinstance(run.mesh.pp, int) and run.mesh.pp == 1
    shared = alone and shares_gradient(run)
    head = head_walk(setting, run.arch.final_norm, local_vocab(rank), loss, shared=shared)
    source = layer_sources(run.arch, replace(SOURCES, head=loss.source)).head
    return head if places is None else _spread_walk(head, places), source


def sent_gradient(stage: PipelineStage, instant: StepInstant) -> Num:
    """1 where another stage sends the output's gradient of the layer at work, else 0.

    In an array of runs some may have no layer of the last group, which is not recomputed.
    """
    if instant.work != "layer" or instant.instant.phase != BACKWARD:
        return 0
    group, later = stage.blocks[instant.stretch], stage.blocks[instant.stretch + 1 :]
    if later and (group.recompute != FULL or isinstance(later[-1].count, SINGLE)):
        return 0
    other: Num = 1 - stage.loss
    for block in later:
        other = other * holds(block.count == 0)
    return other if instant.instant.layer == LAST else other * holds(group.count == 1)


def _layer(run: Run, group: LayerGroup, *, sent: bool = False) -> BlockWalk:
    setting = megatron_setting(run, selective=group.recompute == SELECTIVE)
    layer_walk = _nanotron_layer if is_nanotron(run) else _megatron_layer
    checkpointed = group.together if group.recompute == FULL else 0
    return layer_walk(setting, group.layer, checkpointed=checkpointed, given=sent)


_megatron_layer = remembered(256)(megatron_layer.layer_walk)
_megatron_head = remembered(256)(megatron_head.head_walk)
_nanotron_layer = remembered(256)(nanotron.layer_walk)
_nanotron_head = remembered(256)(nanotron.head_walk)
