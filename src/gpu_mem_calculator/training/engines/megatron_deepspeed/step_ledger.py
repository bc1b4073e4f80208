"""The ledger of one rank of Megatron-LM with DeepSpeed's ZeRO. Its runs have every option."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import Entry, Ledger
from ....ledger.num import Num, larger, largest
from ....run.run import Run
from ...step.activations import StageWalks, block_entries
from ...step.instants import Instants
from ...step.layer_groups import LayerGroups, overlap
from ...step.pipeline import PipelineStage, pipeline_stage
from ..deepspeed.layout import Runs, ZeroLayout, counted, listed, stage_instants, with_hooks
from ..deepspeed.ledger import instants_and_entries, stepwise_ledger
from ..deepspeed.modules import trainable_runs
from ..deepspeed.reduce_at_end import end_reduced_ledger, first_hook
from ..deepspeed.stream_ledger import unrolled_ledger
from ..megatron_lm.options import bits
from .model_inputs import model_input_entries
from .shards import rank_layer, rank_run, vectors
from .walks import walks


def piped(run: Run) -> bool:
    """Whether DeepSpeed's PipelineEngine runs the model: ZeRO 0 and 1, also with one stage."""
    return int(run.options["zero_stage"]) < 2


def stage_runs(rank: Run, stage: PipelineStage) -> Runs:
    """The sizes of a stage's parameters in the optimizer's order, and how often each group occurs.

    A tied last stage builds the whole embedding, positions too, for its copy of the table, and
    PipelineModule registers tied modules before all others (runtime/pipe/module.py).
    """
    pp, size = rank.mesh.pp, len(rank.arch.layers) // rank.mesh.pp
    low = rank.stage * size
    tied = stage.last if rank.arch.tied and largest(pp) > 1 else 0
    ends = {-1: larger(stage.first, tied), -2: stage.last}
    return tuple(
        (sizes, ends[start] if start < 0 else overlap(start, count, low, low + size))
        for sizes, start, count in trainable_runs(rank.arch)
    )


def plan_of(run: Run, rank: Run, stage: PipelineStage) -> ZeroLayout:
    """The ZeRO layout of this rank; gradients are always in a contiguous buffer."""
    level, place = int(run.options["zero_stage"]), str(run.options["offload_optimizer"])
    overlaps, width, runs = run.options["overlap_comm"], bits(run) // 8, stage_runs(rank, stage)
    return ZeroLayout(
        run=rank,
        stage=level,
        width=width,
        trained_width=width,
        ranks=run.mesh.dp,
        trainable=listed(runs),
        runs=runs,
        counts=counted(runs),
        bucket=int(run.options["reduce_bucket_size"]),
        overlap=not piped(run) and bool(level == 3 if overlaps is None else overlaps),
        offload=place,
        pipeline=piped(run),
        layers=len(run.arch.layers) // run.mesh.pp if piped(run) else None,
        first=stage.first,
        last=stage.last,
        one_stage=largest(run.mesh.pp) == 1,
        apart=vectors(rank.arch) if level < 3 else frozenset(),
        builds_head=False,
        root_head=level == 3,
    )


class RankPart(Struct, frozen=True):
    """One rank's part of a run: ZeRO's plan, the stage, its layer groups and their walks."""

    run: Run
    plan: ZeroLayout
    stage: PipelineStage
    stack: LayerGroups
    walks: StageWalks


def ledger(run: Run) -> Ledger:
    """The ledger of one rank of the run's pipeline stage.

    The tensor-parallel size must be a plain integer: it decides which shards the rank has. Arrays
    of pipelines all have one stage, or all have several.
    """
    if hasattr(run.mesh.tp, "astype"):
        raise ValueError("arrays of tensor-parallel sizes need a ledger each")
    stage, rank = pipeline_stage(run), rank_run(run)
    stage_walks = walks(run, rank, stage, piped=piped(run))
    stack = tuple(replace(b, layer=rank_layer(run, b.layer)) for b in stage.blocks)
    part = RankPart(run, plan_of(run, rank, stage), stage, stack, stage_walks)
    if not piped(run) and not run.unrolled:
        return _rolled_ledger(part)
    instants = stage_instants(part.plan, stack)
    if run.unrolled:
        plan = replace(part.plan, instants=_with_epilogue(instants))
        beside = partial(_model_entries, replace(part, plan=plan))
        return unrolled_ledger(plan, stack, stage_walks, beside)
    several = len(stage_walks.head.hooks) > first_hook(part.plan)
    plan = replace(part.plan, instants=with_hooks(instants, head=several))
    saved = block_entries(plan.run, stack, plan.instants, stage_walks)
    more = model_input_entries(run, plan, stage, plan.instants, embedding_runs=False)
    return end_reduced_ledger(plan, stack, stage_walks, saved, more)


def _with_epilogue(instants: Instants) -> Instants:
    """The instants of an unrolled step, and after backward the one that reduces gradients."""
    step_hooks = ("optimizer.norm", "optimizer.cast")
    hooked = with_hooks(instants, head=False)
    return tuple(instant for instant in hooked if instant.instant.where not in step_hooks)


def _model_entries(part: RankPart, instants: Instants, stage_walks: StageWalks) -> Iterator[Entry]:
    """Entries that are neither events of blocks at work nor DeepSpeed's tensors."""
    yield from block_entries(part.plan.run, part.stack, instants, stage_walks)
    yield from model_input_entries(part.run, part.plan, part.stage, instants, embedding_runs=True)


def _rolled_ledger(part: RankPart) -> Ledger:
    """ZeRO 2 and 3: each gradient is copied into a bucket as soon as backward has made it."""
    instants, working = instants_and_entries(part.plan, part.stack, part.walks)
    plan = replace(part.plan, instants=instants)
    saved = _model_entries(replace(part, plan=plan), instants, part.walks)
    return stepwise_ledger(plan, saved, working)


def parameters(run: Run) -> Num:
    """Elements of this rank's part of the model, before ZeRO shards it."""
    return listed(stage_runs(rank_run(run), pipeline_stage(run)))
