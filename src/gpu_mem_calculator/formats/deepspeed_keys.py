"""The keys of DeepSpeed's JSON, each with a rule of deepspeed_rules.py.

Names and defaults are those of DeepSpeed 0.19.8: runtime/config.py, runtime/constants.py,
runtime/precision_config.py, runtime/activation_checkpointing/config.py. Keys of ZeRO are in
deepspeed_zero_keys.py, those of optimizers in deepspeed_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.runfile import SECTIONS
from .deepspeed_rules import (
    CHECKPOINT_FILES,
    COUNT,
    FLAG,
    HOST_REPORT,
    NUMBER,
    OBJECT,
    OFF,
    SIZE,
    AliasKey,
    FixedKey,
    MemoryFreeKey,
    MemoryKey,
    RemovedKey,
    Table,
)
from .deepspeed_zero_keys import ZERO

FP16: Table = {
    "enabled": MemoryKey(FLAG),
    "auto_cast": MemoryFreeKey("inputs that are no whole numbers"),
    "loss_scale": MemoryFreeKey("a number"),
    "initial_scale_power": MemoryFreeKey("a number"),
    "loss_scale_window": MemoryFreeKey("a number"),
    "hysteresis": MemoryFreeKey("a number"),
    "consecutive_hysteresis": MemoryFreeKey("a choice between numbers"),
    "min_loss_scale": MemoryFreeKey("a number"),
    "fp16_master_weights_and_grads": FixedKey(OFF, "16-bit master weights are not modelled"),
}
BF16: Table = {
    "enabled": MemoryKey(FLAG),
    "immediate_grad_update": FixedKey(OFF, "fp32 gradients made one by one are not modelled"),
    "check_grad_overflow": FixedKey(
        (True,), "a step that does not look for overflow is not modelled"
    ),
    "bf16_master_weights_and_grads": FixedKey(OFF, "16-bit master weights are not modelled"),
    "bf16_optimizer_states": FixedKey(OFF, "16-bit optimizer states are not modelled"),
}
CHECKPOINTING: Table = {
    "partition_activations": MemoryKey(FLAG),
    "cpu_checkpointing": MemoryKey(FLAG),
    "contiguous_memory_optimization": MemoryKey(FLAG),
    "number_checkpoints": MemoryKey(COUNT),
    "num_checkpoints": MemoryKey(COUNT),  # a common mistake; DeepSpeed ignores it
    "profile": MemoryFreeKey(HOST_REPORT),
    "synchronize_checkpoint_boundary": MemoryFreeKey("waiting"),
}
DATA_TYPES: Table = {
    "grad_accum_dtype": MemoryKey("dtype"),
    "param_dtype": MemoryKey("dtype"),
    "buffer_dtype": FixedKey((), "buffers of another dtype are not modelled"),
    "keep_in_fp32_modules": FixedKey(("auto",), "modules that stay in fp32 are not modelled"),
}
PIPELINE: Table = {
    "stages": MemoryFreeKey("the program says how many there are"),
    "partition": MemoryFreeKey("the program says how it is cut"),
    "seed_layers": MemoryFreeKey("numbers of the generator"),
    "activation_checkpoint_interval": FixedKey(
        (0,), "say training.activation_checkpointing instead"
    ),
    "use_reentrant": FixedKey((True,), "pipelines without reentrant checkpoints are not modelled"),
    "pipe_partitioned": MemoryFreeKey("for tensor-parallel ranks, of which there is one"),
    "grad_partitioned": MemoryFreeKey("for tensor-parallel ranks, of which there is one"),
}
AIO: Table = {
    "block_size": MemoryKey(COUNT),
    "queue_depth": MemoryFreeKey("requests to the disk"),
    "intra_op_parallelism": MemoryFreeKey("rounds host buffers up to a few KiB"),
    "thread_count": MemoryFreeKey(
        "the older name of intra_op_parallelism; DeepSpeed passes over it"
    ),
    "single_submit": MemoryFreeKey("requests to the disk"),
    "overlap_events": MemoryFreeKey("requests to the disk"),
    "use_gds": FixedKey(OFF, "buffers on the GPU for the disk are not modelled"),
}
# Sections with a switch: its key, the values at which the section has no effect, and why other
# values are refused.
SWITCHED: Mapping[str, tuple[str, tuple[Any, ...], str]] = {
    "autotuning": ("enabled", OFF, "a search for batch sizes is many runs"),
    "compile": ("deepcompile", OFF, "DeepCompile is not modelled"),
    "data_efficiency": ("enabled", OFF, "sequences and batches that change are not modelled"),
    "expert_parallel": ("enabled", OFF, "AutoEP is not modelled"),
    "hybrid_engine": ("enabled", OFF, "the hybrid engine is not modelled"),
    "tensor_parallel": (
        "autotp_size",
        (0, 1),
        "AutoTP is not modelled; engine megatron_deepspeed has tensor parallelism",
    ),
    "torch_autocast": ("enabled", OFF, "DeepSpeed's autocast is not modelled; use bf16 or fp16"),
}
TOP: Table = {
    "train_batch_size": MemoryKey(COUNT),
    "train_micro_batch_size_per_gpu": MemoryKey(COUNT),
    "gradient_accumulation_steps": MemoryKey(COUNT),
    "gradient_clipping": MemoryKey(NUMBER),
    "optimizer": MemoryKey(OBJECT),
    "scheduler": MemoryKey(OBJECT),
    "fp16": FP16,
    "bf16": BF16,
    "bfloat16": AliasKey("bf16"),
    "zero_optimization": ZERO,
    "activation_checkpointing": CHECKPOINTING,
    "zero_allow_untested_optimizer": MemoryKey(FLAG),
    "data_types": DATA_TYPES,
    "communication_data_type": MemoryKey("dtype"),
    "aio": AIO,
    "pipeline": PIPELINE,
    "allgather_size": MemoryKey(SIZE),  # for the old form, in which zero_optimization is true
    **{name: MemoryKey(OBJECT) for name in SWITCHED},
    "zero_force_ds_cpu_optimizer": FixedKey(
        (True,), "other optimizers on the CPU are not modelled"
    ),
    "managed_gradient_accumulation": FixedKey(
        (True,), "accumulation that the program does itself is not modelled"
    ),
    "disable_python_gc": FixedKey(OFF, "what garbage in cycles holds is not modelled"),
    "gradient_predivide_factor": FixedKey((1,), "gradients divided twice are not modelled"),
    "sequence_parallel_size": FixedKey((1,), "Ulysses' sequence parallelism is not modelled"),
    "use_data_before_expert_parallelism": FixedKey(OFF, "DeepSpeed's experts are not modelled"),
    "datastates_ckpt": FixedKey(OFF, "its cache of checkpoints in host memory is not modelled"),
    "weight_quantization": FixedKey((), "quantized weights are not modelled"),
    "prescale_gradients": MemoryFreeKey("gradients are scaled in place"),
    "gradient_allreduce_op": MemoryKey("word", ("mean", "sum")),
    "seq_parallel_communication_data_type": MemoryFreeKey(
        "for sequence-parallel ranks, of which there is one"
    ),
    "disable_allgather": MemoryFreeKey("DeepSpeed does not look at it"),
    "steps_per_print": MemoryFreeKey(HOST_REPORT),
    "wall_clock_breakdown": MemoryFreeKey(HOST_REPORT),
    "memory_breakdown": MemoryFreeKey(HOST_REPORT),
    "dump_state": MemoryFreeKey(HOST_REPORT),
    "log_level": MemoryFreeKey(HOST_REPORT),
    "vocabulary_size": MemoryFreeKey("a warning, where it is odd"),
    "dataloader_drop_last": MemoryFreeKey("batches of the host"),
    "checkpoint": MemoryFreeKey(
        CHECKPOINT_FILES,
        (
            "tag_validation",
            "load_universal",
            "use_node_local_storage",
            "parallel_write",
            "checkpoint_serialization",
            "writer",
        ),
    ),
    "timers": MemoryFreeKey(HOST_REPORT, ("throughput",)),
    "comms_logger": MemoryFreeKey(
        HOST_REPORT, ("enabled", "prof_all", "prof_ops", "verbose", "debug")
    ),
    "tensorboard": MemoryFreeKey(HOST_REPORT, ("enabled", "output_path", "job_name")),
    "csv_monitor": MemoryFreeKey(HOST_REPORT, ("enabled", "output_path", "job_name")),
    "wandb": MemoryFreeKey(HOST_REPORT, ("enabled", "group", "team", "project")),
    "comet": MemoryFreeKey(
        HOST_REPORT,
        (
            "enabled",
            "samples_log_interval",
            "project",
            "workspace",
            "api_key",
            "experiment_name",
            "experiment_key",
            "online",
            "mode",
        ),
    ),
    "flops_profiler": MemoryFreeKey(
        HOST_REPORT,
        (
            "enabled",
            "recompute_fwd_factor",
            "profile_step",
            "module_depth",
            "top_modules",
            "detailed",
            "output_file",
        ),
    ),
    "nebula": RemovedKey("Nebula's checkpoints"),
    "compression_training": RemovedKey("compression"),
    "amp": RemovedKey("Apex' amp", "use fp16 or bf16"),
    "quantize_training": RemovedKey("training with quantization"),
    "sparse_gradients": RemovedKey("sparse gradients of dense tables"),
    "eigenvalue": RemovedKey("training with quantization"),
    "sparse_attention": RemovedKey("sparse attention"),
    "elasticity": RemovedKey("elastic training", "set train_micro_batch_size_per_gpu"),
    "graph_harvesting": RemovedKey("graph harvesting"),
    "curriculum_learning": RemovedKey("old curriculum", "leave it out, and set training.seq_len"),
    "progressive_layer_drop": RemovedKey("progressive layer drop"),
}


def is_deepspeed(data: Any) -> bool:
    """Whether data is a DeepSpeed configuration and not a run file, by its keys."""
    return (
        isinstance(data, Mapping)
        and not data.keys() & SECTIONS.keys()
        and any(key in TOP for key in data)
    )
