"""Megatron-DeepSpeed: Megatron's shards of the model, ZeRO's of their states.

deepspeedai/Megatron-DeepSpeed 6acc370a with DeepSpeed 0.19.8. Its training script runs ZeRO 0 and 1
under DeepSpeed's PipelineEngine, with one stage or more, and ZeRO 2 and 3 without
(--no-pipeline-parallel).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from ...ledger.ledger import Entry, Ledger
from ...ledger.num import Num
from ...run.engine import Engine
from ...run.run import Run
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
from ..deepspeed.states import state_entries
from ..deepspeed.stream_ledger import rank_factory, unrolled_ledger
from ..megatron_lm.checks import PP, layout_problems, option_problems
from ..megatron_lm.options import LOCAL
from .checks import model_problems
from .layout import GROUP, LIMITS, piped, plan_of, stage_runs
from .model_inputs import beside_entries
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


def _with_defaults(run: Run) -> Run:
    """DeepSpeed keeps the gradients, so Megatron's wgrad kernels have no buffer to add into."""
    given = {k: v for k, v in run.options.items() if v is not None}
    return replace(run, options={**OPTIONS, "gradient_accumulation_fusion": False, **given})


def problems(run: Run) -> Iterator[str]:
    """What Megatron refuses, and what ZeRO refuses beside it."""
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
    """One rank of the run's pipeline stage; one model, so no arrays of what shards it."""
    run = _with_defaults(run)
    if any(hasattr(size, "astype") for size in (run.mesh.tp, run.mesh.pp, run.stage)):
        raise ValueError("arrays of tensor- or pipeline-parallel sizes need a ledger each")
    stage, rank = pipeline_stage(run), rank_run(run)
    stage_walks = walks(run, rank, stage, piped=piped(run))
    stack = tuple(replace(b, layer=rank_layer(run, b.layer)) for b in stage.blocks)
    plan = plan_of(run, rank, stage)
    if not piped(run) and not run.unrolled:
        return _rolled(run, plan, stage, stack, stage_walks)
    beats = step(
        tuple(b.stretch for b in stack),
        micro_batches=run.micro_batches,
        head=stage.last,
        embedding=stage.first,
        flight=stage.flight,
        every=run.unrolled,
    )
    if run.unrolled:
        plan = replace(plan, beats=_with_epilogue(beats))
        keeper = rank_factory(plan, stack, stage_walks, LIMITS, GROUP, zero_init=True)
        return unrolled_ledger(
            plan, stack, stage_walks, partial(_beside, run, plan, stage, stack), keeper
        )
    several = len(stage_walks.head.hooks) > first_hook(plan)
    plan = replace(plan, beats=with_hooks(beats, head=several))
    return _whole(run, plan, stage, stack, stage_walks)


def _with_epilogue(beats: tuple[StepInstant, ...]) -> tuple[StepInstant, ...]:
    """Beats of an unrolled step, with the moment after backward at which gradients are reduced."""
    step_hooks = ("optimizer.norm", "optimizer.cast")
    hooked = with_hooks(beats, head=False)
    return tuple(beat for beat in hooked if beat.instant.where not in step_hooks)


def _beside(
    run: Run,
    plan: ZeroLayout,
    stage: PipelineStage,
    stack: tuple[LayerGroup, ...],
    beats: tuple[StepInstant, ...],
    stage_walks: StageWalks,
) -> Iterator[Entry]:
    """What an unrolled run has beside the scripts of its blocks and DeepSpeed's own tensors."""
    yield from block_entries(plan.run, stack, beats, stage_walks)
    yield from beside_entries(run, plan, stage, beats, played=True)


def _rolled(
    run: Run,
    plan: ZeroLayout,
    stage: PipelineStage,
    stack: tuple[LayerGroup, ...],
    stage_walks: StageWalks,
) -> Ledger:
    """ZeRO 2 and 3: gradients go into buckets as they are made."""
    beats, at_work = instants_and_entries(plan, stack, stage_walks, LIMITS)
    plan = replace(plan, beats=beats)
    entries = (
        *state_entries(plan, LIMITS, GROUP, zero_init=True),
        *block_entries(plan.run, stack, beats, stage_walks),
        *beside_entries(run, plan, stage, beats, played=True),
        *at_work,
        *workspace_entries(run, beats),
    )
    return Ledger((*startup_instants(), *(b.instant for b in beats)), entries)


def _whole(
    run: Run,
    plan: ZeroLayout,
    stage: PipelineStage,
    stack: tuple[LayerGroup, ...],
    stage_walks: StageWalks,
) -> Ledger:
    """ZeRO 0 and 1 in the PipelineEngine: gradients stay until all of backward is over."""
    entries = (
        *state_entries(plan, LIMITS, GROUP, zero_init=True),
        *stage12.whole_gradients(plan, stack),
        *reduce_at_end.reduction_entries(plan, stack, stage_walks),
        *block_entries(plan.run, stack, plan.beats, stage_walks),
        *hook_entries(plan, stage_walks),
        *beside_entries(run, plan, stage, plan.beats, played=False),
        *pipeline.pipeline_workspaces(plan, stack),
    )
    return Ledger((*startup_instants(), *(b.instant for b in plan.beats)), entries)


def parameters(run: Run) -> Num:
    """Elements of this rank's part of the model, before ZeRO shards it."""
    run = _with_defaults(run)
    return listed(stage_runs(rank_run(run), pipeline_stage(run)))


ENGINE = Engine(
    name="megatron_deepspeed",
    title=TITLE,
    transformers=False,
    side_streams=zero_streams,
    options=OPTIONS,
    axes=frozenset({"tp", "pp"}),
    optimizers=frozenset({"adam", "adamw", "sgd", "sgd_momentum", "lion"}),
    problems=problems,
    ledger=ledger,
    stage_layers=stage_layers,
    parameters=parameters,
)
