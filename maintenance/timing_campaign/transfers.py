"""Copies between host and GPU, the host's Adam, and a file."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from .kernels import Measured

SIZES = tuple(2**16 * 4**i for i in range(8))  # bytes: 64 KiB to 1 GiB
THREADS = (1, 2, 4, 8, 16)
FILE = 2 * 2**30  # bytes


def copy_seconds(size: int, direction: str, pinned: bool) -> dict[str, Any]:
    """Median seconds of a copy that is waited for."""
    import torch

    host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
    card = torch.zeros(size, dtype=torch.uint8, device="cuda")
    to, source = (card, host) if direction == "to_gpu" else (host, card)
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        to.copy_(source, non_blocking=pinned)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return {"seconds": median(found), "low": min(found), "high": max(found)}


def pin_seconds(size: int) -> dict[str, Any]:
    """Seconds that the allocation of pinned memory takes."""
    import torch

    begin = time.perf_counter()
    torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return {"seconds": time.perf_counter() - begin}


def cpu_adam(size: int, threads: int, how: str) -> dict[str, Any]:
    """Median seconds of an Adam step on the host."""
    import torch

    torch.set_num_threads(threads)
    param = torch.nn.Parameter(torch.zeros(size))
    param.grad = torch.full_like(param, 1e-3)
    if how == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        step = DeepSpeedCPUAdam([param], lr=1e-5).step
    else:
        choice = {"fused": True} if how == "fused" else {"foreach": how == "foreach"}
        step = torch.optim.AdamW([param], lr=1e-5, **choice).step
    found = []
    for _ in range(3):
        begin = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin)
    return {"seconds": median(found[1:]), "low": min(found), "high": max(found)}


def cast_seconds(size: int, threads: int) -> dict[str, Any]:
    """Seconds of a cast from bf16 to fp32 on the host."""
    import torch

    torch.set_num_threads(threads)
    narrow, wide = torch.zeros(size, dtype=torch.bfloat16), torch.zeros(size)
    found = []
    for _ in range(3):
        begin = time.perf_counter()
        wide.copy_(narrow)
        found.append(time.perf_counter() - begin)
    return {"seconds": median(found), "low": min(found), "high": max(found)}


def file_seconds(size: int) -> dict[str, Any]:
    """Seconds that torch.save takes to a file that is then on disk."""
    import torch

    data = torch.zeros(size, dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with (Path(folder) / "state.pt").open("wb") as file:
            torch.save(data, file)
            written = time.perf_counter() - begin
            file.flush()
            os.fsync(file.fileno())
        return {"seconds": time.perf_counter() - begin, "written_seconds": written}


def points(small: bool) -> Measured:
    """Each direction and size; each number of threads."""
    for size in SIZES[:2] if small else SIZES:
        for direction in ("to_gpu", "to_host"):
            for pinned in (True, False):
                yield (
                    {"what": "copy", "direction": direction, "pinned": pinned, "bytes": size},
                    partial(copy_seconds, size, direction, pinned),
                )
    yield {"what": "pin", "bytes": 2**30}, lambda: pin_seconds(2**30)
    count = 10**5 if small else 10**8
    for threads in THREADS:
        for how in ("deepspeed", "fused", "foreach", "forloop"):
            if how in ("foreach", "forloop") and threads not in (1, 16):
                continue
            yield (
                {"what": "cpu_adam", "how": how, "threads": threads, "parameters": count},
                partial(cpu_adam, count, threads, how),
            )
        yield (
            {"what": "cpu_cast", "threads": threads, "parameters": count},
            partial(cast_seconds, count, threads),
        )
    size = 2**20 if small else FILE
    yield {"what": "file", "bytes": size}, lambda: file_seconds(size)
