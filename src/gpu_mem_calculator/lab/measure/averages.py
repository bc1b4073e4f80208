"""Averages over time: of the bytes that torch has allocated, and of the GPU's utilization.

`average_bytes` is the mean over the last step, from torch's history of allocations: each size
weighted by the time it was allocated, by the host's clock. `utilization_pct` is NVML's
`utilization.gpu`, the share of its last sampling period in which a kernel ran, read ten times a
second from the second step to the last; runs shorter than a second have none.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

HISTORY = 1_000_000  # events that torch keeps; a step with more has no average
BLOCK = 512  # bytes: the allocator rounds requests up to a multiple of this
SIGN = {"alloc": 1, "free_requested": -1}  # the events that change torch.cuda.memory_allocated()
PERIOD = 0.1  # seconds between readings
FEWEST = 10  # readings that an average needs
NVML = "libnvidia-ml.so.1"


class AllocationHistory:
    """torch's record of allocations and frees since the last `restart`."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.began = self.clock = 0.0
        self.base = 0

    def restart(self) -> None:
        """Clear the record and begin a new one."""
        self.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=HISTORY, clear_history=True
        )
        self.base = self.cuda.memory_allocated()
        self.began, self.clock = time.monotonic(), time.time()

    def average_bytes(self, end: float) -> int | None:
        """Mean bytes from the restart to `end` (monotonic); None where torch dropped events."""
        traces = self.cuda.memory._snapshot()["device_traces"]
        events = [event for trace in traces for event in trace if event["action"] in SIGN]
        self.cuda.memory._record_memory_history(enabled=None)
        if sum(map(len, traces)) >= HISTORY:
            return None
        return mean_bytes(events, self.base, self.clock, self.clock + end - self.began)


def mean_bytes(
    events: Iterable[Mapping[str, Any]], base: int, begin: float, end: float
) -> int | None:
    """Mean allocated bytes from `begin` to `end` (seconds), with `base` bytes at the beginning.

    The `time_us` of an event is in microseconds.
    """
    if end <= begin:
        return None
    total, allocated, since = 0.0, base, begin
    for event in sorted(events, key=lambda one: int(one["time_us"])):
        now = min(max(event["time_us"] / 1e6, begin), end)
        total += allocated * (now - since)
        since = now
        allocated += SIGN[event["action"]] * -(-event["size"] // BLOCK) * BLOCK
    return round((total + allocated * (end - since)) / (end - begin))


class UtilizationRates(ctypes.Structure):
    """NVML's nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class UtilizationSampler(threading.Thread):
    """A thread that reads the card's utilization; without NVML it has no readings."""

    def __init__(self, cuda: Any, library: str = NVML) -> None:
        super().__init__(daemon=True)
        self.cuda, self.library = cuda, library
        self.readings: list[int] = []
        self.ended = threading.Event()

    def start(self) -> None:
        """Start the thread, unless it has started."""
        if self.ident is None:
            super().start()

    def run(self) -> None:
        """Read every `PERIOD` seconds until `stop`, or until NVML returns an error."""
        try:
            nvml = ctypes.CDLL(self.library)
        except OSError:
            return
        uuid = f"GPU-{self.cuda.get_device_properties(self.cuda.current_device()).uuid}"
        handle, rates = ctypes.c_void_p(), UtilizationRates()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(
            uuid.encode(), ctypes.byref(handle)
        ):
            return
        while not self.ended.wait(PERIOD):
            if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)):
                return
            self.readings.append(int(rates.gpu))

    def stop(self) -> float | None:
        """Stop, and return the mean in percent; None with fewer than `FEWEST` readings."""
        self.ended.set()
        if self.ident is not None:
            self.join()
        readings = self.readings
        return round(sum(readings) / len(readings), 1) if len(readings) >= FEWEST else None
