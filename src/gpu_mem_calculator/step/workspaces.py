"""cuBLAS workspaces: torch allocates them like tensors and never frees them."""

from __future__ import annotations

from collections.abc import Iterator

from ..ledger.ledger import AFTER_EMBEDDING, FIRST_STEP, RUNTIME, Entry
from ..ledger.num import Bytes, Num
from ..ledger.source import code
from ..ledger.units import KIB, MIB
from ..run.phases import BACKWARD, FORWARD
from ..run.run import Run
from .instants import Instants, StepInstant

WORKSPACES = "cuBLAS workspace"


def cublas_bytes(compute_capability: str) -> Bytes:
    """Bytes of one cuBLAS workspace: 32 MiB from Hopper on, else 8,320 KiB."""
    return 32 * MIB if float(compute_capability) >= 9.0 else 8320 * KIB


def workspace_entries(run: Run, instants: Instants) -> Iterator[Entry]:
    """One workspace for the thread that runs forward, one for the thread that runs backward, which
    is allocated by the first matmul of the first backward.
    """
    before = {i.name for i in instants if _in_first_forward(i)}
    for phase in (FORWARD, BACKWARD):
        yield Entry(
            name=f"{WORKSPACES} of {phase}",
            kind=RUNTIME,
            bytes=cublas_bytes(run.compute_capability),
            live={i.name: int(phase == FORWARD or i.name not in before) for i in instants},
            since=phase,
            role=AFTER_EMBEDDING,
            source=code("torch 2.11 ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize"),
        )


def _in_first_forward(step_instant: StepInstant) -> bool:
    instant = step_instant.instant
    return instant.step == FIRST_STEP and instant.phase == FORWARD and not step_instant.later


def lt_entry(count: Num, instants: Instants) -> Entry:
    """cuBLASLt's workspaces, 1 MiB for each of `count` threads that run matmuls with a bias."""
    return Entry(
        name="cuBLASLt workspaces",
        kind=RUNTIME,
        bytes=MIB * count,
        live={i.name: 1 for i in instants},
        source=code("torch 2.11 aten/src/ATen/cuda/CUDABlas.cpp _getWorkspaceSize: 1 MiB"),
    )
