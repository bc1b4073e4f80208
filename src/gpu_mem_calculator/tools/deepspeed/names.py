"""Names of DeepSpeed's JSON for the options and optimizers of a run."""

from __future__ import annotations

from typing import Any

SWAP_ELEMENTS = 100_000_000  # of one of the buffers through which parameters on NVMe pass
# Optimizer -> its name in DeepSpeed's JSON, and its parameters besides the learning rate.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {"adam_w_mode": False}),
    "sgd": ("SGD", {}),
    "sgd_momentum": ("SGD", {"momentum": 0.9}),
    "lion": ("Lion", {}),
}
# Options that have the same name in "zero_optimization".
ZERO_KEYS = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "overlap_comm",
    "contiguous_gradients",
    "stage3_prefetch_bucket_size",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_param_persistence_threshold",
    "sub_group_size",
)
CHECKPOINT_KEYS = ("partition_activations", "cpu_checkpointing")
