"""Megatron+DeepSpeed: Megatron's cuts of the model, ZeRO's flat cuts of its states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ...ledger.ledger import Ledger
from ...ledger.num import Num
from ...run.engine import Engine
from ...run.phases import STARTUP
from ...run.run import Run
from ...step.block_events import plays
from ...step.instants import StepInstant
from ...step.pipeline import PipelineStage, beats, stage_layers, stage_of, stretch_ends
from ...step.workspaces import workspace_entries
from ..megatron_lm.activations import activation_entries
from ..megatron_lm.checks import PP, layout_problems, option_problems
from ..megatron_lm.options import LOCAL, bits, expert_streams
from ..megatron_lm.shards import after_shard, embedding_shard, layer_shard
from ..megatron_lm.states import stage_shard
from ..megatron_lm.stream import stage_writer
from ..megatron_lm.walks import walks
from .states import STARTUP_BEATS, ShardedStates, kept_gradients, with_epilogue, zero_entries

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
        yield (f"parallelism.virtual_pipeline_size={run.virtual_stages}: DeepSpeed's pipeline does "
               "not interleave; set it to 1")  # fmt: skip


def implementation(run: Run) -> str:
    """DeepSpeed's fused Adam, or its CPU one where it is offloaded."""
    if run.options.get("offload_optimizer") == "cpu":
        return "cpu"
    return run.implementation or "fused"


def ledger(run: Run) -> Ledger:
    """One rank of the run's pipeline stage."""
    run = _with_defaults(run)
    stage = stage_of(run)
    instants = with_epilogue(beats(stage, STARTUP_BEATS, every=run.unrolled))
    done = walks(run, stage)
    cut = _cut(run, stage, instants)
    layers = tuple(
        (b, layer_shard(run, b.layer).total, held)
        for b, held in zip(stage.blocks, stage.held, strict=True)
    )
    embedding = embedding_shard(run).total * stage.first
    head = after_shard(run, stage.first).total * stage.last
    steps = tuple(b for b in instants if b.instant.phase != STARTUP)
    entries = (
        *zero_entries(cut),
        *kept_gradients(cut, layers, embedding, head),
        *activation_entries(run, stage, instants, done),
        *workspace_entries(run, steps),
    )
    played = plays(stage.blocks, instants, done) if run.unrolled else {}
    return Ledger(tuple(b.instant for b in instants), entries, played, stage_writer(run, stage))


def _cut(run: Run, stage: PipelineStage, instants: tuple[StepInstant, ...]) -> ShardedStates:
    overlap, level = run.options["overlap_comm"], int(run.options["zero_stage"])
    return ShardedStates(
        run=run, stage=level, width=bits(run) // 8, shard=stage_shard(run, stage), beats=instants,
        bucket=int(run.options["reduce_bucket_size"]),
        overlap=level == 3 if overlap is None else bool(overlap),
        offload=run.options["offload_optimizer"] == "cpu", implementation=implementation(run),
        ends=stretch_ends(stage, instants, every=run.unrolled),
    )  # fmt: skip


def parameters(run: Run) -> Num:
    """Elements of this rank's part of the model, before ZeRO cuts it."""
    run = _with_defaults(run)
    return stage_shard(run, stage_of(run)).total


ENGINE = Engine(
    name="megatron_deepspeed",
    title=TITLE,
    transformers=False,
    side_streams=expert_streams,
    options=OPTIONS,
    axes=frozenset({"tp", "pp", "ep"}),
    optimizers=frozenset({"adam", "adamw", "sgd", "sgd_momentum", "lion"}),
    problems=problems,
    ledger=ledger,
    stage_layers=stage_layers,
    parameters=parameters,
)
