"""Every key of DeepSpeed's JSON, and what becomes of it here.

Each is read; or takes no memory, with the reason; or may only have the values at which it changes
nothing, because what else it does is not modelled; or is gone from DeepSpeed. Names and defaults
are those of DeepSpeed 0.19.8: runtime/config.py, runtime/constants.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/precision_config.py,
runtime/activation_checkpointing/config.py. Keys of optimizers are in deepspeed_optimizer.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..core.runfile import SECTIONS

VERSION = "0.19.8"
COUNT, SIZE, FLAG, NUMBER, OBJECT = "count", "size", "flag", "number", "object"


class Read(NamedTuple):
    """A key that says something of memory, or of how a step runs."""

    kind: str
    words: tuple[Any, ...] = ()  # the values it may have, where they can be listed


class Free(NamedTuple):
    """A key that takes no memory in a step, and why; an object may have these keys."""

    why: str
    keys: tuple[str, ...] | None = None


class Only(NamedTuple):
    """A key whose other values do what is not modelled; `None` in the file is the default."""

    values: tuple[Any, ...]
    why: str


class Gone(NamedTuple):
    """A key that DeepSpeed itself refuses now: what is gone, and what to do."""

    what: str
    fix: str = "leave it out"


class Same(NamedTuple):
    """Another spelling of a key."""

    key: str


Rule = Read | Free | Only | Gone | Same
Table = Mapping[str, "Rule | Table"]

SAVED = "at work when a checkpoint is written or read"
TOLD = "a report, made on the host"
OFF = (False,)

OFFLOAD: Table = {
    "device": Read("word", ("none", "cpu", "nvme")),
    "pin_memory": Read(FLAG),
    "nvme_path": Free("where files are"),
    "buffer_count": Read(SIZE),
}
OFFLOAD_OPTIMIZER: Table = {
    **OFFLOAD,
    "pipeline_read": Read(FLAG),
    "pipeline_write": Read(FLAG),
    "fast_init": Read(FLAG),
    "ratio": Only((1,), "an optimizer that is offloaded in part is not modelled"),
    "super_offload": Only(OFF, "SuperOffload is not modelled"),
    "cpuadam_cores_perc": Free("cores of the host"),
}
OFFLOAD_PARAM: Table = {**OFFLOAD, "buffer_size": Read(SIZE), "max_in_cpu": Read(SIZE)}
# Values of the above that are modelled where the device is nvme; elsewhere they are not used.
NVME: Mapping[str, Any] = {
    "offload_optimizer.buffer_count": 4, "offload_optimizer.pipeline_read": False,
    "offload_optimizer.pipeline_write": False, "offload_optimizer.fast_init": False,
    "offload_param.buffer_count": 5, "offload_param.buffer_size": 100_000_000,
    "offload_param.max_in_cpu": 1_000_000_000,
}  # fmt: skip
ZERO: Table = {
    "stage": Read("word", (0, 1, 2, 3)),
    "contiguous_gradients": Read(FLAG),
    "reduce_bucket_size": Read(COUNT),
    "allgather_bucket_size": Read(SIZE),
    "overlap_comm": Read(FLAG),
    "sub_group_size": Read(COUNT),
    "stage3_prefetch_bucket_size": Read(SIZE),
    "prefetch_bucket_size": Same("stage3_prefetch_bucket_size"),
    "stage3_param_persistence_threshold": Read(SIZE),
    "param_persistence_threshold": Same("stage3_param_persistence_threshold"),
    "stage3_max_live_parameters": Read(SIZE),
    "max_live_parameters": Same("stage3_max_live_parameters"),
    "stage3_max_reuse_distance": Read(SIZE),
    "max_reuse_distance": Same("stage3_max_reuse_distance"),
    "offload_optimizer": OFFLOAD_OPTIMIZER,
    "offload_param": OFFLOAD_PARAM,
    "cpu_offload": Read(FLAG),
    "cpu_offload_param": Read(FLAG),
    "cpu_offload_use_pin_memory": Free("DeepSpeed passes over it; pin_memory of offload_optimizer "
                                       "and offload_param is what counts"),
    "reduce_scatter": Only((True,), "gradients that are all-reduced whole are not modelled"),
    "use_multi_rank_bucket_allreduce": Only((True,), "one reduction for each rank is not modelled"),
    "allgather_partitions": Free("DeepSpeed does not look at it"),
    "compute_grad_norm": Only((True,), "a step without the norm of its gradients is not modelled"),
    "load_from_fp32_weights": Free(SAVED),
    "elastic_checkpoint": Free(SAVED),
    "stage3_gather_16bit_weights_on_model_save": Free(SAVED),
    "gather_16bit_weights_on_model_save": Same("stage3_gather_16bit_weights_on_model_save"),
    "stage3_gather_fp16_weights_on_model_save": Same("stage3_gather_16bit_weights_on_model_save"),
    "pipeline_loading_checkpoint": Free(SAVED),
    "ignore_unused_parameters": Free("an error, or none"),
    "override_module_apply": Free("how weights get their first values"),
    "log_trace_cache_warnings": Free(TOLD),
    "save_muon_momentum_buffer_in_memory": Free("for Muon, which is refused itself"),
    "zenflow": Only((), "ZenFlow is not modelled"),
    "stage3_model_persistence_threshold": Only(
        (sys.maxsize,), "a bound on the weights that are never cut is not modelled"),
    "model_persistence_threshold": Same("stage3_model_persistence_threshold"),
    "stage3_module_granularity_threshold": Only(
        (0,), "modules that are gathered as one are not modelled"),
    "module_granularity_threshold": Same("stage3_module_granularity_threshold"),
    "stage3_use_all_reduce_for_fetch_params": Only(
        OFF, "weights that are gathered by a reduction are not modelled"),
    "use_all_reduce_for_fetch_params": Same("stage3_use_all_reduce_for_fetch_params"),
    "stage3_allgather_sequential": Only(OFF, "weights gathered one by one are not modelled"),
    "allgather_sequential": Same("stage3_allgather_sequential"),
    "legacy_stage1": Only(OFF, f"DeepSpeed {VERSION} has one stage 1"),
    "round_robin_gradients": Only(OFF, "slices of gradients dealt out in turn are not modelled"),
    "parameter_alignment": Only(OFF, "padding between parameters is not modelled"),
    "zero_hpz_partition_size": Only((1,), "ZeRO++'s second copy of the weights is not modelled"),
    "zero_quantized_weights": Only(OFF, "ZeRO++'s quantized weights are not modelled"),
    "zero_quantized_nontrainable_weights": Only(OFF, "quantized frozen weights are not modelled"),
    "zero_quantized_gradients": Only(OFF, "ZeRO++'s quantized gradients are not modelled"),
    "memory_efficient_linear": Only((True,), "torch's own linear under zero.Init is not modelled"),
    "enable_sanity_checks": Only(OFF, "checks of every gradient are not modelled"),
    "leaf_module": Only(({},), "modules that are gathered as one are not modelled"),
    "mics_shard_size": Gone("MiCS"),
    "mics_hierarchical_params_gather": Gone("MiCS"),
    "zeropp_loco_param": Gone("LoCo"),
}  # fmt: skip
FP16: Table = {
    "enabled": Read(FLAG),
    "auto_cast": Free("inputs that are no whole numbers"),
    "loss_scale": Free("a number"),
    "initial_scale_power": Free("a number"),
    "loss_scale_window": Free("a number"),
    "hysteresis": Free("a number"),
    "consecutive_hysteresis": Free("a choice between numbers"),
    "min_loss_scale": Free("a number"),
    "fp16_master_weights_and_grads": Only(OFF, "16-bit master weights are not modelled"),
}
BF16: Table = {
    "enabled": Read(FLAG),
    "immediate_grad_update": Only(OFF, "fp32 gradients made one by one are not modelled"),
    "check_grad_overflow": Only((True,), "a step that does not look for overflow is not modelled"),
    "bf16_master_weights_and_grads": Only(OFF, "16-bit master weights are not modelled"),
    "bf16_optimizer_states": Only(OFF, "16-bit optimizer states are not modelled"),
}
CHECKPOINTING: Table = {
    "partition_activations": Read(FLAG),
    "cpu_checkpointing": Read(FLAG),
    "contiguous_memory_optimization": Read(FLAG),
    "number_checkpoints": Read(COUNT),
    "num_checkpoints": Read(COUNT),  # what people write; DeepSpeed does not look at it
    "profile": Free(TOLD),
    "synchronize_checkpoint_boundary": Free("waiting"),
}
DATA_TYPES: Table = {
    "grad_accum_dtype": Read("dtype"),
    "param_dtype": Read("dtype"),
    "buffer_dtype": Only((), "buffers of another dtype are not modelled"),
    "keep_in_fp32_modules": Only(("auto",), "modules that stay in fp32 are not modelled"),
}
PIPELINE: Table = {
    "stages": Free("the program says how many there are"),
    "partition": Free("the program says how it is cut"),
    "seed_layers": Free("numbers of the generator"),
    "activation_checkpoint_interval": Only((0,), "say training.activation_checkpointing instead"),
    "use_reentrant": Only((True,), "pipelines without reentrant checkpoints are not modelled"),
    "pipe_partitioned": Free("for tensor-parallel ranks, of which there is one"),
    "grad_partitioned": Free("for tensor-parallel ranks, of which there is one"),
}
AIO: Table = {
    "block_size": Read(COUNT),
    "queue_depth": Free("requests to the disk"),
    "intra_op_parallelism": Free("rounds host buffers up to a few KiB"),
    "thread_count": Free("the older name of intra_op_parallelism; DeepSpeed passes over it"),
    "single_submit": Free("requests to the disk"),
    "overlap_events": Free("requests to the disk"),
    "use_gds": Only(OFF, "buffers on the GPU for the disk are not modelled"),
}
# Sections that count where they are switched on; the rest of their keys then has no effect.
SWITCHED: Mapping[str, tuple[str, tuple[Any, ...], str]] = {
    "autotuning": ("enabled", OFF, "a search for batch sizes is many runs"),
    "compile": ("deepcompile", OFF, "DeepCompile is not modelled"),
    "data_efficiency": ("enabled", OFF, "sequences and batches that change are not modelled"),
    "expert_parallel": ("enabled", OFF, "AutoEP is not modelled"),
    "hybrid_engine": ("enabled", OFF, "the hybrid engine is not modelled"),
    "tensor_parallel": ("autotp_size", (0, 1), "AutoTP is not modelled; engine megatron_deepspeed "
                        "has tensor parallelism"),
    "torch_autocast": ("enabled", OFF, "DeepSpeed's autocast is not modelled; use bf16 or fp16"),
}  # fmt: skip
TOP: Table = {
    "train_batch_size": Read(COUNT),
    "train_micro_batch_size_per_gpu": Read(COUNT),
    "gradient_accumulation_steps": Read(COUNT),
    "gradient_clipping": Read(NUMBER),
    "optimizer": Read(OBJECT),
    "scheduler": Read(OBJECT),
    "fp16": FP16,
    "bf16": BF16,
    "bfloat16": Same("bf16"),
    "zero_optimization": ZERO,
    "activation_checkpointing": CHECKPOINTING,
    "zero_allow_untested_optimizer": Read(FLAG),
    "data_types": DATA_TYPES,
    "communication_data_type": Read("dtype"),
    "aio": AIO,
    "pipeline": PIPELINE,
    "allgather_size": Read(SIZE),  # of the old form, zero_optimization true
    **{name: Read(OBJECT) for name in SWITCHED},
    "zero_force_ds_cpu_optimizer": Only((True,), "other optimizers on the CPU are not modelled"),
    "managed_gradient_accumulation": Only(
        (True,), "accumulation that the program does itself is not modelled"),
    "disable_python_gc": Only(OFF, "what garbage in cycles holds is not modelled"),
    "gradient_predivide_factor": Only((1,), "gradients divided twice are not modelled"),
    "sequence_parallel_size": Only((1,), "Ulysses' sequence parallelism is not modelled"),
    "use_data_before_expert_parallelism": Only(OFF, "DeepSpeed's experts are not modelled"),
    "datastates_ckpt": Only(OFF, "its cache of checkpoints in host memory is not modelled"),
    "weight_quantization": Only((), "quantized weights are not modelled"),
    "prescale_gradients": Free("gradients are scaled in place"),
    "gradient_allreduce_op": Read("word", ("mean", "sum")),
    "seq_parallel_communication_data_type": Free("for sequence-parallel ranks, of which there is "
                                                 "one"),
    "disable_allgather": Free("DeepSpeed does not look at it"),
    "steps_per_print": Free(TOLD),
    "wall_clock_breakdown": Free(TOLD),
    "memory_breakdown": Free(TOLD),
    "dump_state": Free(TOLD),
    "log_level": Free(TOLD),
    "vocabulary_size": Free("a warning, where it is odd"),
    "dataloader_drop_last": Free("batches of the host"),
    "checkpoint": Free(SAVED, ("tag_validation", "load_universal", "use_node_local_storage",
                               "parallel_write", "checkpoint_serialization", "writer")),
    "timers": Free(TOLD, ("throughput",)),
    "comms_logger": Free(TOLD, ("enabled", "prof_all", "prof_ops", "verbose", "debug")),
    "tensorboard": Free(TOLD, ("enabled", "output_path", "job_name")),
    "csv_monitor": Free(TOLD, ("enabled", "output_path", "job_name")),
    "wandb": Free(TOLD, ("enabled", "group", "team", "project")),
    "comet": Free(TOLD, ("enabled", "samples_log_interval", "project", "workspace", "api_key",
                         "experiment_name", "experiment_key", "online", "mode")),
    "flops_profiler": Free(TOLD, ("enabled", "recompute_fwd_factor", "profile_step",
                                  "module_depth", "top_modules", "detailed", "output_file")),
    "nebula": Gone("Nebula's checkpoints"),
    "compression_training": Gone("compression"),
    "amp": Gone("Apex' amp", "use fp16 or bf16"),
    "quantize_training": Gone("training with quantization"),
    "sparse_gradients": Gone("sparse gradients of dense tables"),
    "eigenvalue": Gone("training with quantization"),
    "sparse_attention": Gone("sparse attention"),
    "elasticity": Gone("elastic training", "set train_micro_batch_size_per_gpu"),
    "graph_harvesting": Gone("graph harvesting"),
    "curriculum_learning": Gone("old curriculum", "leave it out, and set training.seq_len"),
    "progressive_layer_drop": Gone("progressive layer drop"),
}  # fmt: skip


def is_deepspeed(data: Any) -> bool:
    """Whether data is DeepSpeed's and no run file: by its keys."""
    return (
        isinstance(data, Mapping)
        and not data.keys() & SECTIONS.keys()
        and any(key in TOP for key in data)
    )
