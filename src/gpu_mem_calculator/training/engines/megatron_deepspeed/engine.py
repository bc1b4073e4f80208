"""Megatron-DeepSpeed: Megatron shards the model, ZeRO shards the states of each part.

deepspeedai/Megatron-DeepSpeed 6acc370a with DeepSpeed 0.19.8. Its training script runs ZeRO 0 and 1
under DeepSpeed's PipelineEngine, with one stage or more, and ZeRO 2 and 3 without
(--no-pipeline-parallel).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import Entry, Ledger
from ....ledger.num import Num
from ....ledger.units import MIB
from ....run.engine import Engine, HostLibraries
from ....run.run import Run
from ...step.activations import StageWalks, block_entries
from ...step.instants import StepInstant, step
from ...step.layer_groups import LayerGroup
from ...step.pipeline import PipelineStage, pipeline_stage, stage_layers
from ...step.workspaces import workspace_entries
from ..deepspeed import pipeline, reduce_at_end, stage12
from ..deepspeed.engine import zero_streams
from ..deepspeed.first_gradient import first_hook, hook_entries
from ..deepspeed.layout import ZeroLayout, listed, startup_instants, with_hooks
from ..deepspeed.ledger import instants_and_entries
from ..deepspeed.options import OPTIMIZERS
from ..deepspeed.states import state_entries
from ..deepspeed.stream_ledger import rank_factory, unrolled_ledger
from ..megatron_lm.checks import PP, layout_problems, option_problems
from ..megatron_lm.options import LOCAL
from .checks import model_problems
from .layout import GROUP, LIMITS, piped, plan_of, stage_runs
from .model_inputs import model_input_entries
from .shards import rank_layer, rank_run
from .walks import walks

TITLE = "Megatron+DeepSpeed"
OPTIONS: dict[str, Any] = {
    "zero_stage": 0,
    "offload_optimizer": "none",
    "reduce_bucket_size": 500_000_000,
    "overlap_comm": None,  # None: on in stage 3, off below
    "transformer_implementation": LOCAL,
    "masked_softmax_fusion": True,
    "attention_softmax_in_fp32": True,
    "make_vocab_size_divisible_by": 128,
}


class RankPart(Struct, frozen=True):
    """One rank's part of a run: ZeRO's plan, the stage, its layer groups and their walks."""

    run: Run
    plan: ZeroLayout
    stage: PipelineStage
    stack: tuple[LayerGroup, ...]
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
        yield (
            f"parallelism.virtual_pipeline_size={run.virtual_stages}: DeepSpeed's pipeline does "
            "not interleave; set it to 1"
        )


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
    instants = step(
        tuple(b.stretch for b in stack),
        micro_batches=run.micro_batches,
        head=stage.last,
        embedding=stage.first,
        flight=stage.flight,
        every=run.unrolled,
    )
    if run.unrolled:
        plan = replace(part.plan, instants=_with_epilogue(instants))
        rank_maker = rank_factory(plan, stack, stage_walks, LIMITS, GROUP, zero_init=True)
        beside = partial(_stream_entries, replace(part, plan=plan))
        return unrolled_ledger(plan, stack, stage_walks, beside, rank_maker)
    several = len(stage_walks.head.hooks) > first_hook(part.plan)
    plan = replace(part.plan, instants=with_hooks(instants, head=several))
    return _end_reduced_ledger(replace(part, plan=plan))


def _with_epilogue(instants: tuple[StepInstant, ...]) -> tuple[StepInstant, ...]:
    """The instants of an unrolled step, and after backward the one that reduces gradients."""
    step_hooks = ("optimizer.norm", "optimizer.cast")
    hooked = with_hooks(instants, head=False)
    return tuple(instant for instant in hooked if instant.instant.where not in step_hooks)


def _stream_entries(
    part: RankPart, instants: tuple[StepInstant, ...], stage_walks: StageWalks
) -> Iterator[Entry]:
    """Entries of an unrolled run that are neither block events nor DeepSpeed's tensors."""
    yield from block_entries(part.plan.run, part.stack, instants, stage_walks)
    yield from model_input_entries(part.run, part.plan, part.stage, instants, embedding_runs=True)


def _rolled_ledger(part: RankPart) -> Ledger:
    """ZeRO 2 and 3: each gradient is copied into a bucket as soon as backward has made it."""
    run, stack, stage_walks = part.run, part.stack, part.walks
    instants, working = instants_and_entries(part.plan, stack, stage_walks, LIMITS)
    plan = replace(part.plan, instants=instants)
    entries = (
        *state_entries(plan, LIMITS, GROUP, zero_init=True),
        *block_entries(plan.run, stack, instants, stage_walks),
        *model_input_entries(run, plan, part.stage, instants, embedding_runs=True),
        *working,
        *workspace_entries(run, instants),
    )
    return Ledger((*startup_instants(), *(b.instant for b in instants)), entries)


def _end_reduced_ledger(part: RankPart) -> Ledger:
    """ZeRO 0 and 1 in the PipelineEngine: gradients stay until the whole backward is over."""
    plan, stack, stage_walks = part.plan, part.stack, part.walks
    entries = (
        *state_entries(plan, LIMITS, GROUP, zero_init=True),
        *stage12.whole_gradients(plan, stack),
        *reduce_at_end.reduction_entries(plan, stack, stage_walks),
        *block_entries(plan.run, stack, plan.instants, stage_walks),
        *hook_entries(plan, stage_walks),
        *model_input_entries(part.run, plan, part.stage, plan.instants, embedding_runs=False),
        *pipeline.pipeline_workspaces(plan, stack),
    )
    return Ledger((*startup_instants(), *(b.instant for b in plan.instants)), entries)


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
