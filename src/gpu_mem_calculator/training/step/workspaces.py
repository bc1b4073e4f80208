"""cuBLAS workspaces: torch allocates them like tensors and never frees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...ledger.ledger import AFTER_MASKS, FIRST_STEP, RUNTIME, Entry
from ...ledger.num import Bytes, Num
from ...ledger.source import code
from ...ledger.units import KIB, MIB
from ...pytorch.modelling.huggingface.inputs import rotary_width
from ...run.cuda.chips import cublas_bytes
from ...run.phases import BACKWARD, FORWARD

if TYPE_CHECKING:
    from ...run.run import Run
    from .instants import Instants, StepInstant

WORKSPACES = "cuBLAS workspace"


def config_bytes(text: str) -> Bytes | None:
    """Bytes of CUBLAS_WORKSPACE_CONFIG, the sum of its `:KiB:count` pairs; None where it is not
    one (torch 2.11 ATen/cuda/CublasHandlePool.cpp parseChosenWorkspaceSize).
    """
    if not re.fullmatch(r"(:\d{1,9}:\d{1,9})+", text):
        return None
    pairs = re.findall(r":(\d+):(\d+)", text)
    return Bytes(sum(int(size) * int(count) * KIB for size, count in pairs))


def run_cublas_bytes(run: Run) -> Bytes:
    """Bytes of one cuBLAS workspace of a run."""
    given = run.cublas_workspace
    return cublas_bytes(run.compute_capability) if given is None else Bytes(given)


def workspace_entries(run: Run, instants: Instants) -> Iterator[Entry]:
    """One workspace for the thread that runs forward, one for the thread that runs backward: the
    first matmul of each allocates it after its output. Forward's first one makes the rotary tables,
    where there are any (modeling_llama.py:LlamaRotaryEmbedding), else it is the first layer's.
    """
    rotary = rotary_width((layer.mixer for layer in run.arch.layers), latent=True) > 0
    before = {i.name for i in instants if _in_first_forward(i)}
    for phase in (FORWARD, BACKWARD):
        yield Entry(
            name=f"{WORKSPACES} of {phase}",
            kind=RUNTIME,
            bytes=run_cublas_bytes(run),
            live={i.name: int(phase == FORWARD or i.name not in before) for i in instants},
            since="" if rotary and phase == FORWARD else phase,
            role=AFTER_MASKS,
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
        tensors=lambda: [MIB] * int(count),
        source=code("torch 2.11 aten/src/ATen/cuda/CUDABlas.cpp _getWorkspaceSize: 1 MiB"),
    )
