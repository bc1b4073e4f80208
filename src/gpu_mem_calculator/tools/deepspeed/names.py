"""Names of DeepSpeed's JSON for the options of a run."""

from __future__ import annotations

SWAP_ELEMENTS = 100_000_000  # of one of the buffers through which parameters on NVMe pass
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
