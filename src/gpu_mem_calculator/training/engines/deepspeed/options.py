"""DeepSpeed's options with their defaults, its optimizers, and whether its pipeline runs."""

from __future__ import annotations

from typing import Any

from ....run.run import Precision, Run

PRECISIONS = {
    "fp32": Precision(32, 32),
    "bf16_mixed": Precision(16, 16),
    "fp16_mixed": Precision(16, 16),
}
OPTIONS: dict[str, Any] = {
    "zero_stage": 0,
    "offload_optimizer": "none",
    "offload_param": "none",
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,  # weights are gathered in place: no effect on memory
    "amp": False,  # removed from DeepSpeed: refused when it is on
    "overlap_comm": None,  # None: on in stage 3, off below
    "contiguous_gradients": True,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "sub_group_size": 1_000_000_000,
    "pin_memory": True,
    "zero_init": True,  # stage 3: the model is built under deepspeed.zero.Init
    "partition_activations": False,  # shards over tensor-parallel ranks, of which there is one
    "cpu_checkpointing": False,  # for models that call deepspeed.checkpointing
    "partition_method": "parameters",
}
# Optimizer -> its name in DeepSpeed's JSON, and its parameters besides the learning rate.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {"adam_w_mode": False}),
    "sgd": ("SGD", {}),
    "sgd_momentum": ("SGD", {"momentum": 0.9}),
    "lion": ("Lion", {}),
}
FUSED_ADAM = ("adamw", "adam")  # one kernel, which also steps 16-bit weights without ZeRO
ON_HOST = (*FUSED_ADAM, "lion")  # those with a version for the CPU
PLACES = ("none", "cpu", "nvme")
MIXED = (
    "pipeline_parallel_size mixes 1 with larger sizes, which DeepSpeed runs in two different "
    "engines; estimate those with 1 separately"
)


def option(run: Run, name: str) -> Any:
    """An option of the run, or DeepSpeed's default."""
    return run.options.get(name, OPTIONS[name])


def number(run: Run, name: str) -> int:
    """An option that is an integer: a count of elements, or a ZeRO stage."""
    return int(option(run, name))


def pipelined(run: Run) -> bool:
    """Whether the run has more than one pipeline stage; all elements of an array must agree.

    DeepSpeed's pipeline engine keeps other tensors than its engine for one stage, so a ledger of
    both at once would be wrong for one of them.
    """
    several: Any = run.mesh.pp != 1
    if not hasattr(several, "any"):
        return bool(several)
    if several.any() != several.all():
        raise ValueError(MIXED)
    return bool(several.all())
