"""Megatron-LM's row."""

from __future__ import annotations

from ....run.cuda.runtimes import CUDA, ROCM
from ....run.engine_row import MEGATRON_CORE, SHARD_STATES, EngineRow
from ....run.run import Precision
from .options import bits

# Its kernels and Transformer Engine's are CUDA's, which HIP runs.
ROW = EngineRow(
    title_of=lambda keys: ("Megatron-LM", "Megatron"),
    margin=0.020,
    job="megatron",
    builds_models=True,
    layers=MEGATRON_CORE,
    ranks=SHARD_STATES,
    precision=lambda run: Precision(bits(run), bits(run)),
    equal_stages=True,
    array_sizes=True,
    plan_limit=(
        "under Megatron-LM the host's seconds are those of its kernels alone, and gradients "
        "are reduced under backward at any scale: with little work for each GPU, or on many "
        "nodes, a step may take longer"
    ),
    runtimes=(CUDA, ROCM),
    interval="Megatron-LM",
)
