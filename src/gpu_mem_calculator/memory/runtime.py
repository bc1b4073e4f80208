"""What CUDA and its libraries take beside the tensors of a run."""

from __future__ import annotations

from collections.abc import Iterator

from ..ledger.ledger import RUNTIME, Entry
from ..ledger.source import code, measured
from ..ledger.units import KIB, MIB
from .run import Run
from .timeline import Beat

# nvidia-smi minus torch's reserved memory, before anything else is loaded.
CONTEXT_BYTES = 552_402_944
CONTEXT_SOURCE = measured(
    "CUDA context, NVIDIA H200, torch 2.11.0+cu130: 527 MiB at start, the same in 51 of 51 runs"
)
# NCCL communicator: device minus reserved in runs with NCCL, less the same without.
NCCL_BYTES = 565 * MIB
NCCL_SOURCE = measured(
    "NCCL communicator, NVIDIA H200, one rank: device minus reserved is 1.30 GiB in 2 DDP runs, "
    "0.75 GiB in 23 runs without NCCL"
)
# Modules and handles that load with the first kernels: device - reserved - context.
MODULES_BYTES = 244 * MIB
MODULES_SOURCE = measured(
    "kernel modules, NVIDIA H200: device minus reserved minus context, 160 to 293 MiB in 49 runs"
)


def cublas_bytes(compute_capability: str) -> int:
    """One cuBLAS workspace: 32 MiB from Hopper on, else 8,320 KiB."""
    return 32 * MIB if float(compute_capability) >= 9.0 else 8320 * KIB


def workspace_entry(run: Run, beats: tuple[Beat, ...]) -> Entry:
    """cuBLAS workspaces: one for the thread that runs forward, one for the one that runs
    backward; torch allocates them like tensors and never frees them.
    """
    return Entry(
        name="cuBLAS workspaces", kind=RUNTIME, bytes=2 * cublas_bytes(run.compute_capability),
        live={b.name: 1 for b in beats},
        source=code("torch 2.11 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize"),
    )  # fmt: skip


def outside_torch(run: Run, ranks: int) -> Iterator[tuple[str, int, str]]:
    """What nvidia-smi shows beyond torch's own memory: (name, bytes, source)."""
    yield "CUDA context", CONTEXT_BYTES, str(CONTEXT_SOURCE)
    yield "kernel modules", MODULES_BYTES, str(MODULES_SOURCE)
    if ranks > 1:
        yield "NCCL", NCCL_BYTES, str(NCCL_SOURCE)
