"""Seconds of a call on the GPU, and on the host that launches it."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

TARGET = 0.006  # seconds that one repetition takes on the GPU
LAUNCHES = 400  # calls in a repetition at most: the queue of launches is limited
CYCLES = 1.9e9  # of a sleeping kernel in a second

Call = Callable[[], Any]


def timed(
    call: Call, *, repeats: int = 3, target: float = TARGET, most: int = LAUNCHES
) -> dict[str, Any]:
    """Median, least and most seconds of a call on the GPU, and the host's seconds.

    A sleeping kernel runs first, so that all launches are queued before the first of them runs: the
    GPU then never waits for the host.
    """
    import torch

    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    launched = time.perf_counter() - begin
    torch.cuda.synchronize()
    whole = time.perf_counter() - begin
    calls = int(max(2, min(most, target / max(whole, 2e-6) + 1)))
    device, host = [], []
    for _ in range(repeats):
        one = _repetition(call, calls, launched)
        device.append(one[0])
        host.append(one[1])
    return {
        "seconds": median(device),
        "low": min(device),
        "high": max(device),
        "host_seconds": median(host),
        "calls": calls,
    }


def _repetition(call: Call, calls: int, launched: float) -> tuple[float, float]:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CYCLES * min(0.05, 1.5 * launched * calls + 2e-4)))
    start.record()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    host = time.perf_counter() - begin
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / calls, host / calls


def sustained(call: Call, seconds: float = 0.2) -> float:
    """Seconds of a call in the second half of a run that keeps the GPU busy."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = max(4, int(seconds / 2 / (time.perf_counter() - begin)))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(calls):
        call()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls
