"""What CUDA and its libraries take beside the tensors of a run."""

from __future__ import annotations

from collections.abc import Iterator

from ..ledger.ledger import RUNTIME, Entry
from ..ledger.source import code, measured
from ..ledger.units import KIB, MIB
from .run import Run
from .timeline import BACKWARD, FORWARD, Beat

# All measured on an NVIDIA H200 with torch 2.11.0+cu130, as nvidia-smi's figure less torch's own.
CONTEXT_BYTES = 552_402_944
CONTEXT_SOURCE = measured("CUDA context before anything is loaded: the same in 145 of 145 runs")
MODULES_SOURCE = measured(
    "kernels and handles that load with the first step: 240 MiB in transformers runs (92 runs, "
    "224 to 242), 310 MiB under FSDP2 and DeepSpeed (32 runs, 224 to 322), 224 MiB in "
    "Megatron-Core (13 of 13)"
)
NCCL_BYTES = 560 * MIB
NCCL_SOURCE = measured(
    "one communicator of one rank: 4 of 4 DDP runs; more ranks were not measured"
)


def cublas_bytes(compute_capability: str) -> int:
    """One cuBLAS workspace: 32 MiB from Hopper on, else 8,320 KiB."""
    return 32 * MIB if float(compute_capability) >= 9.0 else 8320 * KIB


WORKSPACES = "cuBLAS workspace"


def workspace_entries(run: Run, beats: tuple[Beat, ...]) -> Iterator[Entry]:
    """cuBLAS workspaces: one for the thread that runs forward, one for the one that runs
    backward; torch allocates them like tensors and never frees them. The second comes with the
    first matmul of the first backward.
    """
    for phase in (FORWARD, BACKWARD):
        yield Entry(
            name=f"{WORKSPACES} of {phase}", kind=RUNTIME,
            bytes=cublas_bytes(run.compute_capability), live={b.name: 1 for b in beats},
            since=phase,
            source=code("torch 2.11 ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize"),
        )  # fmt: skip


def outside_torch(modules_bytes: int, ranks: int) -> Iterator[tuple[str, int, str]]:
    """What nvidia-smi shows beyond torch's own memory: (name, bytes, source)."""
    yield "CUDA context", CONTEXT_BYTES, str(CONTEXT_SOURCE)
    yield "kernel modules", modules_bytes, str(MODULES_SOURCE)
    if ranks > 1:
        yield "NCCL", NCCL_BYTES, str(NCCL_SOURCE)
