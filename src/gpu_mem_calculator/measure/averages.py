"""Averages over time: of what torch has allocated, and of whether the GPU had work.

`average_bytes` is of the last step: torch's own history of allocations, each size held for as long
as it lasted on the host's clock. `utilization_pct` is NVML's `utilization.gpu`, the share of its
last sampling period in which a kernel ran, read ten times a second from the second step to the
last; runs shorter than a second have none.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

HISTORY = 1_000_000  # events of a step that are kept
BLOCK = 512  # bytes: what the allocator rounds to
SIGN = {"alloc": 1, "free_requested": -1}  # what changes torch.cuda.memory_allocated()
PERIOD = 0.1  # seconds between readings
FEWEST = 10  # readings that make an average
NVML = "libnvidia-ml.so.1"


class AllocationHistory:
    """What was allocated and freed since the last `restart`."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.began = self.clock = 0.0
        self.base = 0

    def restart(self) -> None:
        """Forget what was, and begin here."""
        self.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=HISTORY, clear_history=True
        )
        self.base = self.cuda.memory_allocated()
        self.began, self.clock = time.monotonic(), time.time()

    def average_bytes(self, end: float) -> int | None:
        """The mean from the restart to `end` of the monotonic clock; None where events are lost."""
        traces = self.cuda.memory._snapshot()["device_traces"]
        events = [event for trace in traces for event in trace if event["action"] in SIGN]
        self.cuda.memory._record_memory_history(enabled=None)
        if sum(map(len, traces)) >= HISTORY:
            return None
        return mean_bytes(events, self.base, self.clock, self.clock + end - self.began)


def mean_bytes(
    events: Iterable[Mapping[str, Any]], base: int, begin: float, end: float
) -> int | None:
    """The mean over the seconds from `begin` to `end`; an event's time is in microseconds."""
    if end <= begin:
        return None
    total, held, since = 0.0, base, begin
    for event in sorted(events, key=lambda one: int(one["time_us"])):
        now = min(max(event["time_us"] / 1e6, begin), end)
        total += held * (now - since)
        since = now
        held += SIGN[event["action"]] * -(-event["size"] // BLOCK) * BLOCK
    return round((total + held * (end - since)) / (end - begin))


class UtilizationRates(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class UtilizationSampler(threading.Thread):
    """Reads the card's utilisation as it goes; says nothing where the driver does not."""

    def __init__(self, cuda: Any, library: str = NVML) -> None:
        super().__init__(daemon=True)
        self.cuda, self.library = cuda, library
        self.readings: list[int] = []
        self.ended = threading.Event()

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self.ident is None:
            super().start()

    def run(self) -> None:
        """Read until it is stopped, or the driver refuses."""
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
        """The mean of what was read, in percent; None where that is too little."""
        self.ended.set()
        if self.ident is not None:
            self.join()
        found = self.readings
        return round(sum(found) / len(found), 1) if len(found) >= FEWEST else None
