"""The ledger of one rank of DeepSpeed: of any ZeRO stage, and of any stage of its pipeline.

The rank is the first of a data-parallel group, whose slice starts with the embedding. Under ZeRO-3
frozen projections save inputs that their backward does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from ....ledger.ledger import HEAD_GRADIENT, TIED, Entry, Ledger
from ....ledger.num import Bytes, Num, holds, larger, sized, smaller
from ....ledger.remember import remembered
from ....models.arch.adapters import linears
from ....models.arch.arch import Arch, Layer
from ....pytorch.autograd.tape import Tape, Value
from ....pytorch.autograd.walk import BlockWalk, Checkpoint, walk
from ....pytorch.modelling.huggingface.head import head_walk
from ....pytorch.modelling.huggingface.layer import run_layer
from ....pytorch.modelling.huggingface.setting import BlockSetting
from ....run.recompute import FULL, SELECTIVE
from ....run.run import Run
from ...losses import TRANSFORMERS, kernel
from ...optimizers import FUSED
from ...step.activations import StageWalks, activation_entries
from ...step.activations import setting as block_setting
from ...step.activations import walks as walk_stage
from ...step.embedding import embedding_events
from ...step.instants import Instants
from ...step.layer_groups import LayerGroup, LayerGroups, layer_groups, overlap
from ...step.recorded import before_events
from ...step.states import buffer_entry
from . import offload, pipeline, reduce_at_end
from .coordinator import GatherLimits
from .layout import BUILD, ZeroLayout, listed, stage_instants, with_hooks
from .ledger import instants_and_entries, stepwise_ledger, without_first_input
from .modules import size_counts, trainable_runs
from .options import OPTIONS, PRECISIONS, number, option, pipelined
from .reduce_at_end import first_hook
from .stream_ledger import shared_table_events, unrolled_ledger


class Stage3Tape(Tape):
    """A tape on which projections of some names save their input.

    deepspeed 0.19.8 zero/partition_parameters.py:412 puts zero/linear.py:81
    LinearFunctionForZeroStage3 in the place of torch's linear; its `setup_context` saves input and
    weight, whichever gradient is needed. torch's own saves no input for a frozen weight.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = frozenset(names)

    def op(self, name: str, *ins: Value, saves: Iterable[Value] = (), **rest: Any) -> Value:
        """Record an operation as `Tape` does, and save the input of a projection."""
        more = ins[:1] if name in self.names else ()
        return super().op(name, *ins, saves=(*saves, *more), **rest)


def _group_walk(setting: BlockSetting, block: LayerGroup, *, grad: bool) -> BlockWalk:
    """The walk of one layer of a group."""
    whole: Checkpoint = "reentrant" if block.reentrant else "hooks"
    checkpoint: Checkpoint = whole if block.recompute == FULL else ""
    core = block.recompute == SELECTIVE
    return _layer_walk(setting, block.layer, block.masked, core, checkpoint, grad)


@remembered(256)
def _layer_walk(
    setting: BlockSetting,
    layer: Layer,
    masked: bool,
    core: bool,
    checkpoint: Checkpoint,
    grad: bool,
) -> BlockWalk:
    """The walk of one layer, as pytorch/modelling/huggingface/layer.py makes it, on a
    `Stage3Tape`. GPT-2's Conv1D calls addmm itself. `core`: core attention is recomputed.
    """
    tape = Stage3Tape(linear.name for linear in linears(layer) if not linear.transposed)
    bits = 32 if layer.fp32_residual else setting.bits
    x = tape.value("layer.input", setting.tokens * setting.hidden, bits, grad=grad)
    y = run_layer(tape, setting, x, layer, masked=masked)
    tape.hold(x)
    return walk(tape, x, y, recompute_core=core, checkpoint=checkpoint)


@remembered(64)
def _head_walk(setting: BlockSetting, arch: Arch, named: tuple[Bytes, ...]) -> BlockWalk:
    """The walk of the head; its output projection saves its input, too."""
    name = arch.head.name if arch.head is not None else "lm_head"
    return head_walk(setting, arch, Stage3Tape((name,)), named)


def stage3_walks(
    walks: StageWalks, setting: BlockSetting, arch: Arch, blocks: LayerGroups
) -> StageWalks:
    """The walks of a frozen model whose projections save their inputs, the head's included."""
    first = None if walks.first is None else _group_walk(setting, blocks[0], grad=False)
    layers = tuple(_group_walk(setting, block, grad=True) for block in blocks)
    before = walks.head.script
    named = tuple(before.sizes[tensor] for tensor in before.given)
    return replace(walks, layers=layers, first=first, head=_head_walk(setting, arch, named))


def _stage_bounds(run: Run) -> tuple[Num, Num, Num, Num]:
    """The layers [low, high) of this stage, and whether it has the embedding and the head."""
    if not pipelined(run):
        return 0, len(run.arch.layers), 1, 1
    method = str(option(run, "partition_method"))
    low, high = pipeline.bounds(run.arch, run.mesh.pp, run.stage, method)
    layers = len(run.arch.layers)
    first, last = holds(low == 0), holds(high == layers + 2)
    return larger(low - 1, 0), smaller(high - 1, layers), first, last


def ledger(run: Run) -> Ledger:
    """The ledger of one rank, for any ZeRO stage and any stage of a pipeline."""
    run, setting = _setting(run)
    whole_step = _step(run, setting)
    if run.evaluation is not None:
        from ...step.evaluation import with_evaluation

        whole_step = with_evaluation(run, setting, whole_step, lambda r: _step(r, setting))
    return whole_step


def _setting(run: Run) -> tuple[Run, BlockSetting]:
    """The run with the bits of its adapters, and how it runs blocks."""
    precision = PRECISIONS[run.precision]
    stage3 = number(run, "zero_stage") == 3
    if run.adapter is not None:
        # The whole model is cast to the training dtype, but the parameters of one that zero.Init
        # has sharded count as cast, adapters that PEFT made afterwards among them (deepspeed 0.19.8
        # runtime/engine.py:1850).
        made = run.adapter.bits if stage3 and option(run, "zero_init") else 0
        bits = max(made, precision.weights)
        run = replace(run, adapter=replace(run.adapter, bits=bits))
    return run, replace(block_setting(run, precision), own_linear=stage3)


def _step(run: Run, setting: BlockSetting) -> Ledger:
    """The ledger of start-up and a step."""
    precision, stage3 = PRECISIONS[run.precision], setting.own_linear
    low, high, first, last = _stage_bounds(run)
    stack = layer_groups(run, low, high)
    walks = walk_stage(run, setting, stack)
    if run.frozen and stage3:
        walks = stage3_walks(walks, setting, run.arch, stack)
    if pipelined(run) and run.arch.tied:  # the head's table is a copy, and waits for no other
        walks = replace(walks, head=head_walk(setting, replace(run.arch, tied=False)))
    plan = _zero_layout(run, precision.weights // 8, (low, high, first, last))
    tokens = sized(run.batch * run.seq * setting.hidden, setting.bits)
    if plan.stage and not plan.pipeline and not run.unrolled:
        return _rolled_ledger(plan, setting, stack, walks)
    instants = stage_instants(plan, stack)
    if run.unrolled:
        plan = replace(plan, instants=instants)
        if (plan.zero_init or plan.pipeline) and walks.embedding is not None and run.arch.tied:
            table = shared_table_events(walks.embedding, alone=plan.pipeline)
            walks = replace(walks, embedding=table)
        return unrolled_ledger(plan, stack, walks, partial(_beside, plan, setting, stack, tokens))
    several = len(walks.head.hooks) > first_hook(plan)
    if option(run, "cpu_checkpointing"):
        instants = offload.with_second(instants)
    plan = replace(plan, instants=with_hooks(instants, head=several))
    return _end_reduced_ledger(plan, setting, stack, walks, tokens)


def _beside(
    plan: ZeroLayout,
    setting: BlockSetting,
    stack: LayerGroups,
    tokens: Bytes,
    instants: Instants,
    walks: StageWalks,
) -> Iterator[Entry]:
    """What an unrolled run has beside layers, head and DeepSpeed's own tensors."""
    buffers = buffer_entry(plan.run, plan.instants, plan.layers)
    yield replace(buffers, live={**buffers.live, BUILD: 1})
    yield from activation_entries(plan.run, setting, stack, instants, walks)
    yield from pipeline.buffer_entries(plan, tokens) if plan.pipeline else ()


def _rolled_ledger(
    plan: ZeroLayout, setting: BlockSetting, stack: LayerGroups, walks: StageWalks
) -> Ledger:
    """The ledger of ZeRO 1 to 3 without a pipeline."""
    run = plan.run
    if run.record is not None:
        walks = replace(walks, embedding=before_events(run.record))
    elif not run.frozen:
        table = embedding_events(run, setting)
        if plan.zero_init and run.arch.tied:
            table = shared_table_events(table, alone=False)
        walks = replace(walks, embedding=table)
    instants, at_work = instants_and_entries(plan, stack, walks)
    plan = replace(plan, instants=instants)
    saved = activation_entries(run, setting, stack, instants, walks)
    saved = without_first_input(run, saved, instants)
    saved = offload.checkpoints_on_host(plan, stack, saved)
    return stepwise_ledger(plan, saved, at_work)


def _end_reduced_ledger(
    plan: ZeroLayout, setting: BlockSetting, stack: LayerGroups, walks: StageWalks, tokens: Bytes
) -> Ledger:
    """The ledger of ZeRO 0, or of a pipeline's stage: gradients stay where autograd puts them until
    backward is over. `tokens`: bytes of the tensor between two stages.
    """
    run = plan.run
    saved = activation_entries(run, setting, stack, plan.instants, walks)
    if plan.pipeline:
        # the head has a copy of a tied table, so there is no sum of its gradients
        saved = (e for e in saved if e.role not in (TIED, HEAD_GRADIENT))
    saved = offload.checkpoints_on_host(plan, stack, saved)
    buffers = pipeline.buffer_entries(plan, tokens) if plan.pipeline else ()
    return reduce_at_end.end_reduced_ledger(plan, stack, walks, saved, buffers)


def _zero_layout(run: Run, width: int, part: tuple[Num, Num, Num, Num]) -> ZeroLayout:
    """Sizes and options of this rank's part of the model. A tied head on another stage is a copy.

    width: bytes of a weight; part: what `_stage_bounds` returns

    An offloaded optimizer of stages 1 and 2 has contiguous gradients (stage_1_and_2.py:300).
    """
    low, high, first, last = part
    arch, stage = run.arch, number(run, "zero_stage")
    place = str(option(run, "offload_optimizer"))
    both = {-1: first, -2: last}
    runs = [
        (sizes, both[start] if start < 0 else overlap(start, count, low, high))
        for sizes, start, count in trainable_runs(arch, run.adapter)
    ]
    if arch.tied and run.adapter is None:
        runs.append(((arch.embedding[0].numel,), last * (1 - first)))
    frozen = arch.num_parameters + arch.tower_parameters if run.frozen else 0
    overlap_comm = option(run, "overlap_comm")
    return ZeroLayout(
        run=run,
        stage=stage,
        width=width,
        trained_width=width if run.adapter is None else run.adapter.bits // 8,
        ranks=run.mesh.dp * run.mesh.cp,
        trainable=listed(tuple(runs)),
        frozen=frozen,
        limits=GatherLimits(*(number(run, key) for key in OPTIONS if key.startswith("stage3_"))),
        sub_group=number(run, "sub_group_size"),
        zero_init=stage == 3 and bool(option(run, "zero_init")),
        runs=tuple(runs),
        counts=dict(size_counts(arch, run.adapter)),
        frozen_counts=dict(size_counts(arch)) if run.frozen else {},
        bucket=number(run, "reduce_bucket_size"),
        overlap=not pipelined(run) and bool(stage == 3 if overlap_comm is None else overlap_comm),
        contiguous=bool(option(run, "contiguous_gradients") or (stage < 3 and place != "none")),
        offload=place,
        offload_param=str(option(run, "offload_param")),
        pinned=bool(option(run, "pin_memory")),
        implementation=run.implementation or FUSED,
        pipeline=pipelined(run),
        layers=high - low if pipelined(run) else None,
        root_head=kernel(run, TRANSFORMERS).reads == "weight",
        first=first,
        last=last,
    )
