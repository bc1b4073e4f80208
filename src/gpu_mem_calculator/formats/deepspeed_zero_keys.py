"""The keys of DeepSpeed's `zero_optimization` section, with those of its offload sections.

Names and defaults are those of DeepSpeed 0.19.8: runtime/zero/config.py and
runtime/zero/offload_config.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .deepspeed_rules import (
    CHECKPOINT_FILES,
    COUNT,
    FLAG,
    HOST_REPORT,
    OFF,
    SIZE,
    VERSION,
    AliasKey,
    FixedKey,
    MemoryFreeKey,
    MemoryKey,
    RemovedKey,
    Table,
)

OFFLOAD: Table = {
    "device": MemoryKey("word", ("none", "cpu", "nvme")),
    "pin_memory": MemoryKey(FLAG),
    "nvme_path": MemoryFreeKey("where files are"),
    "buffer_count": MemoryKey(SIZE),
}
OFFLOAD_OPTIMIZER: Table = {
    **OFFLOAD,
    "pipeline_read": MemoryKey(FLAG),
    "pipeline_write": MemoryKey(FLAG),
    "fast_init": MemoryKey(FLAG),
    "ratio": FixedKey((1,), "an optimizer that is offloaded in part is not modelled"),
    "super_offload": FixedKey(OFF, "SuperOffload is not modelled"),
    "cpuadam_cores_perc": MemoryFreeKey("cores of the host"),
}
OFFLOAD_PARAM: Table = {**OFFLOAD, "buffer_size": MemoryKey(SIZE), "max_in_cpu": MemoryKey(SIZE)}
# The only values of these keys that are modelled with device nvme; other devices do not use them.
NVME: Mapping[str, Any] = {
    "offload_optimizer.buffer_count": 4,
    "offload_optimizer.pipeline_read": False,
    "offload_optimizer.pipeline_write": False,
    "offload_optimizer.fast_init": False,
    "offload_param.buffer_count": 5,
    "offload_param.buffer_size": 100_000_000,
    "offload_param.max_in_cpu": 1_000_000_000,
}
ZERO: Table = {
    "stage": MemoryKey("word", (0, 1, 2, 3)),
    "contiguous_gradients": MemoryKey(FLAG),
    "reduce_bucket_size": MemoryKey(COUNT),
    "allgather_bucket_size": MemoryKey(SIZE),
    "overlap_comm": MemoryKey(FLAG),
    "sub_group_size": MemoryKey(COUNT),
    "stage3_prefetch_bucket_size": MemoryKey(SIZE),
    "prefetch_bucket_size": AliasKey("stage3_prefetch_bucket_size"),
    "stage3_param_persistence_threshold": MemoryKey(SIZE),
    "param_persistence_threshold": AliasKey("stage3_param_persistence_threshold"),
    "stage3_max_live_parameters": MemoryKey(SIZE),
    "max_live_parameters": AliasKey("stage3_max_live_parameters"),
    "stage3_max_reuse_distance": MemoryKey(SIZE),
    "max_reuse_distance": AliasKey("stage3_max_reuse_distance"),
    "offload_optimizer": OFFLOAD_OPTIMIZER,
    "offload_param": OFFLOAD_PARAM,
    "cpu_offload": MemoryKey(FLAG),
    "cpu_offload_param": MemoryKey(FLAG),
    "cpu_offload_use_pin_memory": MemoryFreeKey(
        "DeepSpeed passes over it; pin_memory of offload_optimizer and offload_param is what counts"
    ),
    "reduce_scatter": FixedKey((True,), "gradients that are all-reduced whole are not modelled"),
    "use_multi_rank_bucket_allreduce": FixedKey(
        (True,), "one reduction for each rank is not modelled"
    ),
    "allgather_partitions": MemoryFreeKey("DeepSpeed does not look at it"),
    "compute_grad_norm": FixedKey(
        (True,), "a step without the norm of its gradients is not modelled"
    ),
    "load_from_fp32_weights": MemoryFreeKey(CHECKPOINT_FILES),
    "elastic_checkpoint": MemoryFreeKey(CHECKPOINT_FILES),
    "stage3_gather_16bit_weights_on_model_save": MemoryFreeKey(CHECKPOINT_FILES),
    "gather_16bit_weights_on_model_save": AliasKey("stage3_gather_16bit_weights_on_model_save"),
    "stage3_gather_fp16_weights_on_model_save": AliasKey(
        "stage3_gather_16bit_weights_on_model_save"
    ),
    "pipeline_loading_checkpoint": MemoryFreeKey(CHECKPOINT_FILES),
    "ignore_unused_parameters": MemoryFreeKey("an error, or none"),
    "override_module_apply": MemoryFreeKey("how weights get their first values"),
    "log_trace_cache_warnings": MemoryFreeKey(HOST_REPORT),
    "save_muon_momentum_buffer_in_memory": MemoryFreeKey("for Muon, which is refused itself"),
    "zenflow": FixedKey((), "ZenFlow is not modelled"),
    "stage3_model_persistence_threshold": FixedKey(
        (sys.maxsize,), "a bound on the weights that are never cut is not modelled"
    ),
    "model_persistence_threshold": AliasKey("stage3_model_persistence_threshold"),
    "stage3_module_granularity_threshold": FixedKey(
        (0,), "modules that are gathered as one are not modelled"
    ),
    "module_granularity_threshold": AliasKey("stage3_module_granularity_threshold"),
    "stage3_use_all_reduce_for_fetch_params": FixedKey(
        OFF, "weights that are gathered by a reduction are not modelled"
    ),
    "use_all_reduce_for_fetch_params": AliasKey("stage3_use_all_reduce_for_fetch_params"),
    "stage3_allgather_sequential": FixedKey(OFF, "weights gathered one by one are not modelled"),
    "allgather_sequential": AliasKey("stage3_allgather_sequential"),
    "legacy_stage1": FixedKey(OFF, f"DeepSpeed {VERSION} has one stage 1"),
    "round_robin_gradients": FixedKey(
        OFF, "slices of gradients dealt out in turn are not modelled"
    ),
    "parameter_alignment": FixedKey(OFF, "padding between parameters is not modelled"),
    "zero_hpz_partition_size": FixedKey(
        (1,), "ZeRO++'s second copy of the weights is not modelled"
    ),
    "zero_quantized_weights": FixedKey(OFF, "ZeRO++'s quantized weights are not modelled"),
    "zero_quantized_nontrainable_weights": FixedKey(
        OFF, "quantized frozen weights are not modelled"
    ),
    "zero_quantized_gradients": FixedKey(OFF, "ZeRO++'s quantized gradients are not modelled"),
    "memory_efficient_linear": FixedKey(
        (True,), "torch's own linear under zero.Init is not modelled"
    ),
    "enable_sanity_checks": FixedKey(OFF, "checks of every gradient are not modelled"),
    "leaf_module": FixedKey(({},), "modules that are gathered as one are not modelled"),
    "mics_shard_size": RemovedKey("MiCS"),
    "mics_hierarchical_params_gather": RemovedKey("MiCS"),
    "zeropp_loco_param": RemovedKey("LoCo"),
}
