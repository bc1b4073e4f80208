"""The launcher that starts a training script on every GPU of a run."""

from __future__ import annotations

from ...runfile.resolve.resolved_run import ResolvedRun


def launch_words(resolved: ResolvedRun) -> str:
    """python on one GPU, else torchrun."""
    hardware = resolved.hardware
    if hardware.num_gpus == 1:
        return "python"
    local = hardware.num_gpus // hardware.num_nodes
    if hardware.num_nodes == 1:
        return f"torchrun --nproc-per-node {local}"
    nodes = f"--nnodes {hardware.num_nodes} --nproc-per-node {local}"
    return f"torchrun {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
