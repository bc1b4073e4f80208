"""Megatron-DeepSpeed: Megatron shards the model, ZeRO shards the states of each part.

deepspeedai/Megatron-DeepSpeed 6acc370a with DeepSpeed 0.19.8. Its training script runs ZeRO 0 and 1
under DeepSpeed's PipelineEngine, with one stage or more, and ZeRO 2 and 3 without
(--no-pipeline-parallel). The parameters that DeepSpeed trains on a rank are Megatron's shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import Entry, Ledger
from ....ledger.num import Num, larger
from ....ledger.units import MIB
from ....run.engine import Engine, HostLibraries
from ....run.run import Run
from ...step.activations import StageWalks, block_entries
from ...step.instants import Instants
from ...step.layer_groups import LayerGroups, overlap
from ...step.pipeline import PipelineStage, pipeline_stage, stage_layers
from ..deepspeed.engine import zero_streams
from ..deepspeed.layout import Runs, ZeroLayout, listed, stage_instants, with_hooks
from ..deepspeed.ledger import instants_and_entries, stepwise_ledger
from ..deepspeed.modules import trainable_runs
from ..deepspeed.options import OPTIMIZERS
from ..deepspeed.options import OPTIONS as DEEPSPEED
from ..deepspeed.reduce_at_end import end_reduced_ledger, first_hook
from ..deepspeed.stream_ledger import unrolled_ledger
from ..megatron_lm.checks import PP, layout_problems, option_problems
from ..megatron_lm.options import LOCAL, bits
from ..megatron_lm.options import OPTIONS as MEGATRON
from .checks import model_problems
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
    tied = stage.last if rank.arch.tied and int(pp) > 1 else 0
    ends = {-1: larger(stage.first, tied), -2: stage.last}
    return tuple(
        (sizes, ends[start] if start < 0 else overlap(start, count, low, low + size))
        for sizes, start, count in trainable_runs(rank.arch)
    )


def plan_of(run: Run, rank: Run, stage: PipelineStage) -> ZeroLayout:
    """The ZeRO layout of this rank; gradients are always in a contiguous buffer."""
    level, place = int(run.options["zero_stage"]), str(run.options["offload_optimizer"])
    overlaps, width, runs = run.options["overlap_comm"], bits(run) // 8, stage_runs(rank, stage)
    counts: Counter[int] = Counter()
    for sizes, units in runs:
        for size in sizes if int(units) else ():
            counts[size] += int(units)
    return ZeroLayout(
        run=rank,
        stage=level,
        width=width,
        trained_width=width,
        ranks=run.mesh.dp,
        trainable=listed(runs),
        runs=runs,
        counts=dict(counts),
        bucket=int(run.options["reduce_bucket_size"]),
        overlap=not piped(run) and bool(level == 3 if overlaps is None else overlaps),
        offload=place,
        pipeline=piped(run),
        layers=len(run.arch.layers) // run.mesh.pp if piped(run) else None,
        first=stage.first,
        last=stage.last,
        one_stage=int(run.mesh.pp) == 1,
        apart=vectors(rank.arch) if level < 3 else frozenset(),
        builds_head=False,
        root_head=level == 3,
    )


TITLE = "Megatron+DeepSpeed"
OF_ZERO = ("zero_stage", "offload_optimizer", "reduce_bucket_size", "overlap_comm")
OF_SCORES = ("masked_softmax_fusion", "attention_softmax_in_fp32")
OPTIONS: dict[str, Any] = {
    **{key: DEEPSPEED[key] for key in OF_ZERO},
    "transformer_implementation": LOCAL,
    **{key: MEGATRON[key] for key in (*OF_SCORES, "make_vocab_size_divisible_by")},
}


class RankPart(Struct, frozen=True):
    """One rank's part of a run: ZeRO's plan, the stage, its layer groups and their walks."""

    run: Run
    plan: ZeroLayout
    stage: PipelineStage
    stack: LayerGroups
    walks: StageWalks


def _with_defaults(run: Run) -> Run:
    """The run with the default of every option that is not set.

    Gradient accumulation fusion is off: DeepSpeed keeps the gradients, so Megatron's wgrad kernels
    have no buffer to add into.
    """
    options = {k: v for k, v in run.options.items() if v is not None}
    defaults = {**OPTIONS, "gradient_accumulation_fusion": False}
    return replace(run, options=defaults | options)


def problems(run: Run) -> Iterator[str]:
    """One message for each setting that Megatron or ZeRO refuses, or that is not modelled."""
    run = _with_defaults(run)
    yield from option_problems(run, TITLE)
    yield from layout_problems(run, TITLE)
    yield from model_problems(run, TITLE)
    stage, place = run.options["zero_stage"], run.options["offload_optimizer"]
    if stage not in (0, 1, 2, 3):
        yield f"engine.zero_stage={stage} is not a ZeRO stage; try 0, 1, 2 or 3"
    elif stage > 1 and run.mesh.pp > 1:
        yield f"engine.zero_stage={stage} does not go with {PP}={run.mesh.pp}; try 1"
    if place not in ("none", "cpu"):
        yield f"engine.offload_optimizer={place!r} is not modelled here; try 'cpu' or 'none'"
    elif place == "cpu" and stage == 0:
        yield "engine.offload_optimizer='cpu' needs ZeRO; try zero_stage 1"
    if run.virtual_stages > 1:
        why = "DeepSpeed's pipeline does not interleave"
        yield f"parallelism.virtual_pipeline_size={run.virtual_stages}: {why}; set it to 1"


def ledger(run: Run) -> Ledger:
    """The ledger of one rank of the run's pipeline stage.

    Tensor- and pipeline-parallel sizes and the stage must be plain integers: they decide which
    layers and shards the rank has.
    """
    run = _with_defaults(run)
    if any(hasattr(size, "astype") for size in (run.mesh.tp, run.mesh.pp, run.stage)):
        raise ValueError("arrays of tensor- or pipeline-parallel sizes need a ledger each")
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
    run = _with_defaults(run)
    return listed(stage_runs(rank_run(run), pipeline_stage(run)))


ENGINE = Engine(
    name="megatron_deepspeed",
    title=TITLE,
    transformers=False,
    loss_kernels="",
    side_streams=zero_streams,
    options=OPTIONS,
    axes=frozenset({"tp", "pp"}),
    optimizers=frozenset(OPTIMIZERS),
    host_libraries=HostLibraries(780 * MIB, "72 runs, 672 to 860 MiB"),  # PyTorch's: not measured
    problems=problems,
    ledger=ledger,
    stage_layers=stage_layers,
    parameters=parameters,
)
