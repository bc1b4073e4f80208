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
from ...step.activations import GO, StageWalks
from ...step.instants import StepInstant
from ...step.layer_groups import LayerGroup
from ...step.pipeline import PipelineStage
from .options import setting
from .shards import local_vocab


def walks(run: Run, stage: PipelineStage) -> StageWalks:
    """Walk every distinct layer, and the head; weight gradients go into the main buffer at once.

    `Walks.first` is here the layer that runs backward first, where another stage sends the
    gradient of its output; an unrolled run has it among the layers.
    """
    layers = tuple(_layer(run, block) for block in stage.blocks)
    sent = None
    if not nothing(1 - stage.last):
        sent = _layer(run, stage.blocks[-1], sent=True)
    if run.unrolled and sent is not None:
        layers, sent = (*layers[:-1], sent), None
    how, vocab = setting(run, selective=False), local_vocab(run)
    return StageWalks(layers, _head(how, run.arch.final_norm, vocab), sent, GO)


def given(stage: PipelineStage, beat: StepInstant) -> Num:
    """1 where the layer at work has its output's gradient from another stage, else 0."""
    if beat.work != "layer" or beat.stretch < len(stage.blocks) - 1:
        return 0
    if beat.instant.phase != BACKWARD:
        return 0
    other = 1 - stage.last
    return other if beat.instant.layer == LAST else other * holds(stage.working[-1] == 1)


def _layer(run: Run, block: LayerGroup, *, sent: bool = False) -> BlockWalk:
    how = setting(run, selective=block.recompute == "selective")
    return _walked(how, block.layer, block.recompute == "full", sent)


@remembered(256)
def _walked(how: MegatronSetting, layer: Layer, checkpointed: bool, sent: bool) -> BlockWalk:
    return layer_walk(how, layer, checkpointed=checkpointed, given=sent)


_head = remembered(256)(head_walk)
