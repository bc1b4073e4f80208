"""GPU memory of a server's process before it loads a model: context, kernels, handles, NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.source import code
from ..run import Run
from ..served import NON_TORCH, ServerItem
from .libraries import (
    CONTEXT_SOURCE,
    HANDLE_SOURCE,
    KERNELS_SOURCE,
    context_bytes,
    handle_bytes,
    kernels_bytes,
)
from .nccl import nccl

MEASURED_CAPABILITY = "9.0"  # on which code and handles were measured


def process_items(run: Run, *, as_measured: bool = False) -> Iterator[ServerItem]:
    """The parts as items of a server. `as_measured`: code and handles are those of the GPU on which
    they were measured, for servers with kernels beyond torch's, of which no smaller size is known.
    """
    loaded = replace(run, compute_capability=MEASURED_CAPABILITY) if as_measured else run
    parts = (
        ("CUDA context", context_bytes(run), CONTEXT_SOURCE),
        ("torch's kernels", kernels_bytes(loaded), KERNELS_SOURCE),
        ("cuBLAS handle", handle_bytes(loaded), HANDLE_SOURCE),
    )
    for name, size, source in parts:
        yield ServerItem(figure=NON_TORCH, name=name, bytes=size, source=source)
    for name, size, text in nccl(run, streams=False):
        yield ServerItem(figure=NON_TORCH, name=name, bytes=size, source=code(text))
