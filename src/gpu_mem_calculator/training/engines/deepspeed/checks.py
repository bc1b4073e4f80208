"""What DeepSpeed refuses, one sentence each: the value, the rule, the nearest fix."""

from __future__ import annotations

from collections.abc import Iterator

from ....run.problems import Problem
from ....run.recompute import FULL
from ....run.run import Run
from ...losses import DEFAULT, LOSS, LOSSES, TRANSFORMERS
from .modules import tower_problems
from .options import FUSED_ADAM, ON_HOST, PLACES, PRECISIONS, number, option, pipelined


def problems(run: Run) -> Iterator[str]:
    """One sentence for each thing that DeepSpeed refuses or that is not modelled."""
    stage = number(run, "zero_stage")
    if stage not in (0, 1, 2, 3):
        yield f"engine.zero_stage={stage} is not a ZeRO stage; try 0, 1, 2 or 3"
    for refused in (_precision_problems, _offload_problems, _pipeline_problems, tower_problems):
        yield from refused(run, stage)
    if (run.liger or run.loss != DEFAULT or run.label_smoothing) and int(run.mesh.pp) > 1:
        what = "loss" if run.loss != DEFAULT else "liger" if run.liger else "label_smoothing"
        fix = "leave it out, or set parallelism.pipeline_parallel_size to 1"
        yield Problem(
            f"training.{what} is not modelled with pipeline parallelism; {fix}",
            f"training.{what}",
            "parallelism.pipeline_parallel_size",
        )
    row = LOSSES[run.loss]
    if stage == 3 and row.kernels[TRANSFORMERS].reads == "weight" and not row.gathers_weight:
        why = "is not modelled here under ZeRO-3, which gathers the output layer's weight for it"
        fix = f"use loss {DEFAULT!r}, or engine.zero_stage 2"
        yield Problem(f"training.loss={run.loss!r} {why}; {fix}", LOSS, "engine.zero_stage")
    if option(run, "amp"):
        yield "engine.amp is gone from DeepSpeed 0.19.8; try precision bf16_mixed"
    if (size := number(run, "allgather_bucket_size")) % 2:
        yield f"engine.allgather_bucket_size={size} is odd, DeepSpeed wants even; try {size + 1}"
    for name in ("partition_activations", "cpu_checkpointing"):
        if option(run, name) and run.recompute != FULL:
            why = "acts on checkpoints, of which there are none"
            yield f"engine.{name}=true {why}; try activation_checkpointing full"
    if run.quantization is not None and stage == 3:
        why = "cannot be sharded by ZeRO-3, whose shards are of the model's dtype"
        yield f"training.quantization={run.quantization} {why}; try zero_stage 2"
    elif run.quantization is not None:
        why = "is not modelled under DeepSpeed"
        yield f"training.quantization={run.quantization} {why}; try engine pytorch_ddp"


def _precision_problems(run: Run, stage: int) -> Iterator[str]:
    if run.precision not in PRECISIONS:
        why = "DeepSpeed steps on fp32 masters"
        fix = f"try {run.precision.partition('_')[0]}_mixed"
        yield f"training.precision={run.precision}: {why}; {fix}"
    if run.autocast:
        yield "training.autocast=true is not modelled under DeepSpeed; leave it false"
    if run.implementation not in ("", "fused", "foreach"):
        why = "has no DeepSpeed optimizer"
        fix = "try fused, or foreach for torch_adam"
        yield f"training.optimizer_implementation={run.implementation} {why}; {fix}"
    adam = run.optimizer in FUSED_ADAM
    if stage == 0 and run.precision != "fp32" and not (adam and run.implementation != "foreach"):
        why = "at zero_stage 0 in 16 bits is not modelled, only fused Adam is"
        fix = "try zero_stage 1"
        yield f"training.optimizer={f'{run.optimizer} {run.implementation}'.strip()} {why}; {fix}"


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
    if place != "none" and run.optimizer not in ON_HOST:
        why = "has no CPU version in DeepSpeed, offload needs one"
        yield f"training.optimizer={run.optimizer} {why}; try adamw or lion"
    if place != "none" and run.implementation:
        why = "runs on the GPU, an offloaded optimizer does not"
        yield f"training.optimizer_implementation={run.implementation} {why}; leave it out"


def _pipeline_problems(run: Run, stage: int) -> Iterator[str]:
    method = option(run, "partition_method")
    if method not in ("parameters", "uniform"):
        yield f"engine.partition_method={method} is not modelled; try parameters or uniform"
    if not pipelined(run):
        return
    if stage > 1:
        yield f"engine.zero_stage={stage} does not go with a pipeline; try 0 or 1"
    if run.virtual_stages > 1:
        why = "DeepSpeed's pipeline does not interleave"
        yield f"parallelism.virtual_pipeline_size={run.virtual_stages}: {why}; set it to 1"
    if run.adapter is not None:
        yield "training.lora is not modelled in a DeepSpeed pipeline; try pipeline_parallel_size 1"
    if isinstance(run.mesh.pp, int) and run.mesh.pp > len(run.arch.layers):
        why = f"is more than the {len(run.arch.layers)} layers"
        fix = f"try {len(run.arch.layers)} or fewer"
        yield f"parallelism.pipeline_parallel_size={run.mesh.pp} {why}; {fix}"
