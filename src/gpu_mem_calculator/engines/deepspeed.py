"""DeepSpeed 0.19.8: ZeRO 0 to 3, offload, and its pipeline of whole layers.

The ledger is for rank 0 of a data-parallel group, whose slice starts with the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from ..ledger.ledger import Entry, Ledger
from ..ledger.num import Num, holds, larger, smaller
from ..memory.activations import Walks, activation_entries, setting, walks
from ..memory.engine import Engine
from ..memory.huggingface.head import head_walk
from ..memory.huggingface.setting import Setting
from ..memory.recorded import table_script
from ..memory.run import Precision, Run
from ..memory.runtime import workspace_entries, zero_streams
from ..memory.stack import Block, blocks, overlap
from ..memory.states import buffer_entry
from ..memory.surroundings import embedding_script
from ..memory.timeline import Beat, in_flight, step
from ..memory.zero import offload, pipeline, stage12, whole
from ..memory.zero.coordinator import Limits
from ..memory.zero.frozen import adapter_bits, keeping, without_sum
from ..memory.zero.hooks import first_hook, hook_entries
from ..memory.zero.modules import size_counts, tower_problems, trainable_runs
from ..memory.zero.plan import BIRTH, Plan, startup_instants, with_hooks
from ..memory.zero.rolled import beats_and_entries, first_layers_input
from ..memory.zero.states import state_entries
from ..memory.zero.unrolled import keeper_of, shared_table, unrolled_ledger

PRECISIONS = {"fp32": Precision(32, 32), "bf16_mixed": Precision(16, 16),
              "fp16_mixed": Precision(16, 16)}  # fmt: skip
OPTIONS: dict[str, Any] = {
    "zero_stage": 0,
    "offload_optimizer": "none",
    "offload_param": "none",
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,  # weights are gathered in place: no effect on memory
    "amp": False,  # gone from DeepSpeed: refused when it is on
    "overlap_comm": None,  # None: on in stage 3, off below
    "contiguous_gradients": True,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "sub_group_size": 1_000_000_000,
    "pin_memory": True,
    "zero_init": True,  # stage 3: the model is built under deepspeed.zero.Init
    "partition_activations": False,  # cuts across tensor-parallel ranks, of which there is one
    "cpu_checkpointing": False,  # for models that call deepspeed.checkpointing
    "partition_method": "parameters",
}
PLACES = ("none", "cpu", "nvme")


def option(run: Run, name: str) -> Any:
    """An option of the run, or DeepSpeed's default."""
    return run.options.get(name, OPTIONS[name])


def number(run: Run, name: str) -> int:
    """An option that is a count of elements, or a stage."""
    return int(option(run, name))


def pipelined(run: Run) -> bool:
    """Whether any of the runs has more than one stage."""
    several = run.mesh.pp != 1
    return bool(several.any() if hasattr(several, "any") else several)


def problems(run: Run) -> Iterator[str]:
    """What DeepSpeed refuses, and what is not modelled."""
    stage = number(run, "zero_stage")
    if stage not in (0, 1, 2, 3):
        yield f"engine.zero_stage={stage} is not a ZeRO stage; try 0, 1, 2 or 3"
    for refused in (_precision_problems, _offload_problems, _pipeline_problems, tower_problems):
        yield from refused(run, stage)
    if run.options.get("amp"):
        yield "engine.amp is gone from DeepSpeed 0.19.8; try precision bf16_mixed"
    if number(run, "allgather_bucket_size") % 2:
        size = number(run, "allgather_bucket_size")
        yield f"engine.allgather_bucket_size={size} is odd, DeepSpeed wants even; try {size + 1}"
    for name in ("partition_activations", "cpu_checkpointing"):
        if option(run, name) and run.recompute != "full":
            yield (f"engine.{name}=true acts on checkpoints, of which there are none; "
                   "try activation_checkpointing full")  # fmt: skip
    if run.quantization is not None and stage == 3:
        yield (f"training.quantization={run.quantization} cannot be cut by ZeRO-3, whose shards "
               "are of the model's dtype; try zero_stage 2")  # fmt: skip
    elif run.quantization is not None:
        yield (f"training.quantization={run.quantization} is not modelled under DeepSpeed; "
               "try engine pytorch_ddp")  # fmt: skip


def _precision_problems(run: Run, stage: int) -> Iterator[str]:
    if run.precision not in PRECISIONS:
        yield (f"training.precision={run.precision}: DeepSpeed steps on fp32 masters; "
               f"try {run.precision.partition('_')[0]}_mixed")  # fmt: skip
    if run.autocast:
        yield "training.autocast=true is not modelled under DeepSpeed; leave it false"
    if run.implementation not in ("", "fused", "foreach"):
        yield (f"training.optimizer_implementation={run.implementation} has no DeepSpeed "
               "optimizer; try fused, or foreach for torch_adam")  # fmt: skip
    adam = run.optimizer in ("adam", "adamw")
    if stage == 0 and run.precision != "fp32" and not (adam and run.implementation != "foreach"):
        yield (f"training.optimizer={run.optimizer} {run.implementation} at zero_stage 0 in 16 "
               "bits is not modelled, only fused Adam is; try zero_stage 1")  # fmt: skip


def _offload_problems(run: Run, stage: int) -> Iterator[str]:
    place, params = option(run, "offload_optimizer"), option(run, "offload_param")
    for name, value in (("offload_optimizer", place), ("offload_param", params)):
        if value not in PLACES:
            yield f"engine.{name}={value} is not a place; try none, cpu or nvme"
    if place != "none" and stage == 0:
        yield f"engine.offload_optimizer={place} needs ZeRO; try zero_stage 1, 2 or 3"
    if place == "nvme" and stage in (1, 2):
        yield f"engine.offload_optimizer=nvme needs ZeRO-3, stage {stage} keeps all in RAM; try cpu"
    if params != "none" and stage != 3:
        yield f"engine.offload_param={params} needs ZeRO-3, not stage {stage}; try zero_stage 3"
    if place != "none" and run.optimizer not in ("adam", "adamw", "lion"):
        yield (f"training.optimizer={run.optimizer} has no CPU version in DeepSpeed, offload needs "
               "one; try adamw or lion")  # fmt: skip
    if place != "none" and run.implementation:
        yield (f"training.optimizer_implementation={run.implementation} runs on the GPU, an "
               "offloaded optimizer does not; leave it out")  # fmt: skip


def _pipeline_problems(run: Run, stage: int) -> Iterator[str]:
    method = option(run, "partition_method")
    if method not in ("parameters", "uniform"):
        yield f"engine.partition_method={method} is not modelled; try parameters or uniform"
    if not pipelined(run):
        return
    if stage > 1:
        yield f"engine.zero_stage={stage} does not go with a pipeline; try 0 or 1"
    if run.virtual_stages > 1:
        yield (f"parallelism.virtual_pipeline_size={run.virtual_stages}: DeepSpeed's pipeline does "
               "not interleave; set it to 1")  # fmt: skip
    if run.adapter is not None:
        yield "training.lora is not modelled in a DeepSpeed pipeline; try pipeline_parallel_size 1"
    if isinstance(run.mesh.pp, int) and run.mesh.pp > len(run.arch.layers):
        yield (f"parallelism.pipeline_parallel_size={run.mesh.pp} is more than the "
               f"{len(run.arch.layers)} layers; try {len(run.arch.layers)} or fewer")  # fmt: skip


def _place(run: Run) -> tuple[Num, Num, Num, Num]:
    """The layers [low, high) of this stage, and whether it has the embedding and the head."""
    if not pipelined(run):
        return 0, len(run.arch.layers), 1, 1
    method = str(option(run, "partition_method"))
    low, high = pipeline.bounds(run.arch, run.mesh.pp, run.stage, method)
    layers = len(run.arch.layers)
    first, last = holds(low == 0), holds(high == layers + 2)
    return larger(low - 1, 0), smaller(high - 1, layers), first, last


def ledger(run: Run) -> Ledger:
    """One rank's ledger, for any stage."""
    precision = PRECISIONS[run.precision]
    cut = number(run, "zero_stage") == 3 and bool(option(run, "zero_init"))
    if run.adapter is not None:
        bits = adapter_bits(run.adapter, precision.weights, zero_init=cut)
        run = replace(run, adapter=replace(run.adapter, bits=bits))
    how = setting(run, precision)
    low, high, first, last = _place(run)
    stack = blocks(run, low, high)
    done = walks(run, how, stack)
    if run.frozen and number(run, "zero_stage") == 3:
        done = keeping(done, how, run.arch, stack)
    if pipelined(run) and run.arch.tied:  # the head's table is a copy, and waits for no other
        done = replace(done, head=head_walk(how, replace(run.arch, tied=False)))
    width = precision.weights // 8
    plan = _plan(run, width, (low, high, first, last))
    tokens = run.batch * run.seq * how.hidden * how.bits // 8
    if plan.stage and not plan.pipeline and not run.unrolled:
        return _rolled(plan, how, stack, done, cut)
    beats = step(
        tuple(b.stretch for b in stack), micro_batches=run.micro_batches, head=last,
        embedding=first, flight=in_flight(run.mesh.pp, run.stage, run.micro_batches),
        every=run.unrolled,
    )  # fmt: skip
    if run.unrolled:
        plan = replace(plan, beats=beats)
        keeper = keeper_of(plan, stack, done, _limits(run), number(run, "sub_group_size"), cut)
        if (cut or plan.pipeline) and done.embedding is not None and run.arch.tied:
            table = shared_table(done.embedding, alone=plan.pipeline)
            done = replace(done, embedding=table)
        return unrolled_ledger(plan, stack, done, partial(_beside, plan, how, stack, tokens),
                               keeper)  # fmt: skip
    several = len(done.head.hooks) > first_hook(plan)
    if option(run, "cpu_checkpointing"):
        beats = offload.with_second(beats)
    return _whole(replace(plan, beats=with_hooks(beats, head=several)), how, stack, done, tokens)


def _beside(
    plan: Plan, how: Setting, stack: tuple[Block, ...], tokens: Num, beats: tuple[Beat, ...],
    done: Walks,
) -> Iterator[Entry]:  # fmt: skip
    """What an unrolled run has beside layers, head and DeepSpeed's own tensors."""
    buffers = buffer_entry(plan.run, plan.beats, plan.layers)
    yield replace(buffers, live={**buffers.live, BIRTH: 1})
    yield from activation_entries(plan.run, how, stack, beats, done)
    yield from pipeline.buffer_entries(plan, tokens) if plan.pipeline else ()


def _rolled(plan: Plan, how: Setting, stack: tuple[Block, ...], done: Walks, cut: bool) -> Ledger:
    """ZeRO without a pipeline; `cut`: the model is built under zero.Init."""
    run = plan.run
    if run.record is not None:
        done = replace(done, embedding=table_script(run.record))
    elif not run.frozen:
        table = embedding_script(run, how)
        shared = cut and run.arch.tied
        done = replace(done, embedding=shared_table(table, alone=False) if shared else table)
    beats, at_work = beats_and_entries(plan, stack, done, _limits(run))
    plan = replace(plan, beats=beats)
    kept = first_layers_input(run, activation_entries(run, how, stack, beats, done), beats)
    if option(run, "cpu_checkpointing"):
        pinned = not option(run, "partition_activations")
        kept = offload.checkpoints_on_host(plan, stack, kept, pinned=pinned)
    entries = (*_states(plan), *kept, *at_work, *workspace_entries(run, beats))
    return Ledger((*startup_instants(), *(b.instant for b in beats)), entries)


def _whole(plan: Plan, how: Setting, stack: tuple[Block, ...], done: Walks, tokens: Num) -> Ledger:
    """Stage 0, or a stage of a pipeline: gradients stay where they are until backward is over."""
    run = plan.run
    kept = activation_entries(run, how, stack, plan.beats, done)
    if plan.pipeline:
        kept = without_sum(kept)
    if option(run, "cpu_checkpointing"):
        pinned = not option(run, "partition_activations")
        kept = offload.checkpoints_on_host(plan, stack, kept, pinned=pinned)
    entries = [
        *_states(plan),
        *stage12.kept_gradients(plan, stack),
        *whole.reduction_entries(plan, stack, done),
        *kept,
        *hook_entries(plan, done),
        *(pipeline.buffer_entries(plan, tokens) if plan.pipeline else ()),
        *pipeline.workspaces(plan, stack),
    ]
    return Ledger((*startup_instants(), *(b.instant for b in plan.beats)), tuple(entries))


def _plan(run: Run, width: int, part: tuple[Num, Num, Num, Num]) -> Plan:
    """Sizes of this rank's part of the model; a tied head on another stage is a copy.

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
    elements: Num = sum(sum(sizes) * units for sizes, units in runs)
    frozen = arch.num_parameters + arch.tower_parameters if run.frozen else 0
    overlap_comm = option(run, "overlap_comm")
    return Plan(
        run=run, stage=stage, width=width,
        trained_width=width if run.adapter is None else run.adapter.bits // 8,
        ranks=run.mesh.dp * run.mesh.cp,
        trainable=run.scaled(elements), frozen=run.scaled(frozen), runs=tuple(runs),
        counts=dict(size_counts(arch, run.adapter)),
        frozen_counts=dict(size_counts(arch)) if run.frozen else {},
        beats=(), bucket=number(run, "reduce_bucket_size"),
        overlap=not pipelined(run) and bool(stage == 3 if overlap_comm is None else overlap_comm),
        contiguous=bool(option(run, "contiguous_gradients") or (stage < 3 and place != "none")),
        offload=place,
        offload_param=str(option(run, "offload_param")),
        pinned=bool(option(run, "pin_memory")), implementation=run.implementation or "fused",
        pipeline=pipelined(run), layers=high - low if pipelined(run) else None,
        first=first, last=last,
    )  # fmt: skip


def _limits(run: Run) -> Limits:
    """What decides how many parameters of stage 3 are gathered."""
    return Limits(*(number(run, name) for name in OPTIONS if name.startswith("stage3_")))


def _states(plan: Plan) -> Iterator[Entry]:
    group, cut = number(plan.run, "sub_group_size"), bool(option(plan.run, "zero_init"))
    return state_entries(plan, _limits(plan.run), group, zero_init=cut)


def stage_layers(run: Run) -> list[int]:
    """Layers of each pipeline stage."""
    method = str(option(run, "partition_method"))
    return pipeline.layers_of_stages(run.arch, int(run.mesh.pp), method)


ENGINE = Engine(
    name="deepspeed",
    tower="trained: DeepSpeed makes masters, gradients and optimizer states for all parameters",
    title="DeepSpeed",
    side_streams=zero_streams,
    options=OPTIONS,
    axes=frozenset({"pp"}),
    optimizers=frozenset({"adamw", "adam", "sgd", "sgd_momentum", "lion"}),
    problems=problems,
    ledger=ledger,
    stage_layers=stage_layers,
)
