"""The walks of one pipeline stage of Megatron: its layers' and the head's."""

from __future__ import annotations

from ...autograd.walk import BlockWalk
from ...ledger.ledger import LAST
from ...ledger.num import Num, holds, nothing
from ...ledger.remember import remembered
from ...model.arch import Layer
from ...modelling.megatron.head import head_walk
from ...modelling.megatron.layer import layer_walk
from ...modelling.megatron.ops import MegatronSetting
from ...run.phases import BACKWARD
from ...run.run import Run
from ...step.activations import FREE_AT_ONCE, StageWalks
from ...step.instants import StepInstant
from ...step.layer_groups import LayerGroup
from ...step.pipeline import PipelineStage
from .options import loss, shares_gradient
from .options import setting as megatron_setting
from .shards import local_vocab


def walks(run: Run, stage: PipelineStage) -> StageWalks:
    """The walks of every distinct layer and of the head. Weight gradients are added to the main
    buffer at once.

    `first` of the result is here the layer that runs backward first, where another stage sends the
    gradient of its output; an unrolled run has it among the layers.
    """
    layers = tuple(_layer(run, group) for group in stage.blocks)
    sent = None
    if not nothing(1 - stage.last):
        sent = _layer(run, stage.blocks[-1], sent=True)
    if run.unrolled and sent is not None:
        layers, sent = (*layers[:-1], sent), None
    setting = megatron_setting(run, selective=False)
    alone = isinstance(run.mesh.pp, int) and run.mesh.pp == 1
    shared = alone and shares_gradient(run)
    head = _head(setting, run.arch.final_norm, local_vocab(run), loss(run), shared=shared)
    return StageWalks(layers, head, sent, FREE_AT_ONCE)


def sent_gradient(stage: PipelineStage, instant: StepInstant) -> Num:
    """1 where another stage sends the output's gradient of the layer at work, else 0."""
    if instant.work != "layer" or instant.stretch < len(stage.blocks) - 1:
        return 0
    if instant.instant.phase != BACKWARD:
        return 0
    other = 1 - stage.last
    return other if instant.instant.layer == LAST else other * holds(stage.blocks[-1].count == 1)


def _layer(run: Run, group: LayerGroup, *, sent: bool = False) -> BlockWalk:
    setting = megatron_setting(run, selective=group.recompute == "selective")
    checkpointed = group.together if group.recompute == "full" else 0
    return _cached_walk(setting, group.layer, checkpointed, sent)


@remembered(256)
def _cached_walk(
    setting: MegatronSetting, layer: Layer, checkpointed: int, sent: bool
) -> BlockWalk:
    return layer_walk(setting, layer, checkpointed=checkpointed, given=sent)


_head = remembered(256)(head_walk)
