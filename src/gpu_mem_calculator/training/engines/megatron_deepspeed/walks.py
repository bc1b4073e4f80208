"""The walks of one stage of Megatron-DeepSpeed: its layers, the head, the embedding's backward."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.num import EMPTY, Bytes, holds, larger, largest, nothing, sized
from ....ledger.remember import remembered
from ....ledger.source import code
from ....pytorch.autograd.events import BlockEvents, EventRecorder
from ....pytorch.autograd.reductions import embedding_sort_workspace
from ....pytorch.autograd.walk import BlockWalk
from ....pytorch.modelling.megatron.ops import MegatronSetting
from ....run.recompute import FULL, SELECTIVE
from ....run.run import Run
from ...step.activations import StageWalks
from ...step.layer_groups import LayerGroup
from ...step.layer_walks import LayerSources
from ...step.pipeline import PipelineStage
from ..megatron_lm.options import setting as megatron_setting
from ..megatron_lm.shards import local_vocab
from .layer import head_walk, layer_walk
from .shards import final_norm

CODE = "Megatron-DeepSpeed 6acc370a megatron"
SOURCES = LayerSources(
    code(f"{CODE}/model/transformer.py, walked with autograd's saving rules"),
    code(f"{CODE}/core/tensor_parallel/cross_entropy.py:14-125"),
    code("deepspeed 0.19.8 runtime/activation_checkpointing/checkpointing.py: a layer's input"),
)


def rank_setting(run: Run, *, selective: bool = False) -> MegatronSetting:
    """The settings that the layers of one rank run with."""
    return replace(megatron_setting(run, selective=selective), share=run.arch.embedding[0].share)


def walks(run: Run, rank: Run, stage: PipelineStage, *, piped: bool) -> StageWalks:
    """Walk every distinct layer, the head and the embedding's backward.

    `rank`: the run as DeepSpeed sees it. `piped`: DeepSpeed's PipelineEngine runs the model. With a
    single stage, a tied head's gradient waits for the embedding's.
    """
    tied = run.arch.tied and largest(run.mesh.pp) == 1
    head = _head(rank_setting(run), final_norm(run.arch), local_vocab(run), tied=tied, piped=piped)
    layers = tuple(_layer(run, block) for block in stage.blocks)
    return StageWalks(
        layers, head, embedding=embedding_events(run, rank, tied=tied), sources=SOURCES
    )


def _layer(run: Run, block: LayerGroup) -> BlockWalk:
    setting = rank_setting(run, selective=block.recompute == SELECTIVE)
    return _layer_walk(setting, block.layer, checkpointed=block.recompute == FULL)


_layer_walk = remembered(256)(layer_walk)
_head = remembered(256)(head_walk)


class EmbeddingBackward(Struct, frozen=True):
    """Bytes of the tensors in the embedding's backward.

    steps: the gradient of the embedding's output, one size for each operation that rewrites it
    words, positions: the gradients of the two tables
    work: the workspace that the gradient of `words` needs
    """

    steps: tuple[Bytes, ...]
    words: Bytes
    positions: Bytes
    work: Bytes

    @property
    def turning(self) -> Bytes:
        """Bytes by which two consecutive `steps` exceed the last step with the other tensors."""
        pair = reduce(larger, (old + new for old, new in pairwise(self.steps)), EMPTY)
        return larger(pair - self.steps[-1] - self.words - self.positions - self.work, EMPTY)


def embedding_backward(run: Run, rank: Run) -> EmbeddingBackward:
    """The reverse of language_model.py:229-270.

    Dropout, the gather over a sequence-parallel group, the rows of other ranks' words set to zero,
    a copy in [b, s, h] if there are several samples.
    """
    setting = rank_setting(run)
    local = sized(setting.local_tokens * setting.hidden, setting.bits)
    full = sized(setting.tokens * setting.hidden, setting.bits)
    steps = [local, *[local] * bool(run.arch.embedding_dropout)]
    steps += [full] * setting.sequence_parallel + [full] * bool(run.mesh.tp > 1)
    words, *others = (weight.numel for weight in rank.arch.embedding)
    work = embedding_sort_workspace(setting.tokens, local_vocab(run), setting.hidden)
    work = work + full * holds(setting.batch > 1)
    return EmbeddingBackward(
        tuple(steps), sized(words, setting.bits), sized(sum(others), setting.bits), work
    )


def embedding_events(run: Run, rank: Run, *, tied: bool) -> BlockEvents:
    """The allocations and frees of the embedding's backward.

    `tied`: autograd adds the words' gradient in place to the head's, which is contiguous.
    """
    table, recorder = embedding_backward(run, rank), EventRecorder()
    first = exit_grad = recorder.number(table.steps[0])
    for size in table.steps[1:]:
        (grad,) = recorder.work((size,))
        recorder.over((first,))
        first = grad
    positions = [] if nothing(table.positions) else [recorder.weight(table.positions)]
    words = recorder.weight(table.words)
    recorder.over((*recorder.work((table.work,)), first))
    shared = -1
    if tied:
        recorder.over((words,))
        shared = words = recorder.number(table.words)
    return recorder.table_backward(shared, exit_grad, (words, *positions))
