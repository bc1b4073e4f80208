"""What a server's process holds on a card before its model: context, kernels, handles, NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..ledger.source import code
from ..run.run import Run
from ..run.served import NON_TORCH, ServerItem
from .libraries import (
    CONTEXT_SOURCE,
    HANDLE_SOURCE,
    KERNELS_SOURCE,
    context_bytes,
    handle_bytes,
    kernels_bytes,
)
from .nccl import nccl

MEASURED = "9.0"  # the compute capability on which code and handles were measured


def process(run: Run, *, as_measured: bool = False) -> Iterator[ServerItem]:
    """Each part. `as_measured`: code and handles of the card they were measured on, for servers
    that load kernels beside torch's, of which nothing smaller is known.
    """
    loads = replace(run, compute_capability=MEASURED) if as_measured else run
    parts = (
        ("CUDA context", context_bytes(run), CONTEXT_SOURCE),
        ("torch's kernels", kernels_bytes(loads), KERNELS_SOURCE),
        ("cuBLAS handle", handle_bytes(loads), HANDLE_SOURCE),
    )
    for name, size, source in parts:
        yield ServerItem(figure=NON_TORCH, name=name, bytes=size, source=source)
    for name, size, text in nccl(run, streams=False):
        yield ServerItem(figure=NON_TORCH, name=name, bytes=size, source=code(text))
