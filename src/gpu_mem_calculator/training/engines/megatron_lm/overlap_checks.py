"""What collectives that overlap with kernels need."""

from __future__ import annotations

from collections.abc import Iterator

from ....run.run import Run
from .options import fused, option


def overlap_problems(run: Run) -> Iterator[str]:
    """What overlapped collectives need (megatron/training/arguments.py validate_args)."""
    tensor, weights = "engine.tp_comm_overlap=true", "engine.overlap_param_gather=true"
    if option(run, "tp_comm_overlap"):
        if not fused(run):
            yield f"{tensor} is Transformer Engine's, and layers are local; leave it out"
        elif not run.sequence_parallel:
            yield f"{tensor} needs parallelism.sequence_parallel=true; set it"
    if option(run, "overlap_param_gather"):
        if not option(run, "distributed_optimizer"):
            yield f"{weights} needs distributed_optimizer=true; set it"
        elif not option(run, "overlap_grad_reduce"):
            yield f"{weights} needs overlap_grad_reduce=true; set it"
