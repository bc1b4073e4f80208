"""Reads torch's and the driver's counters at the end of each phase of a job, and times its steps.

The steps after the probed ones are timed without probes: one synchronize at the end of each, and
nothing between. The first of them is not timed: it begins with what a probe left behind.

`average_bytes` is the mean over the last step, from torch's history of allocations: each size
weighted by the time it was allocated, by the host's clock. `utilization_pct` is NVML's
`utilization.gpu`, the share of its last sampling period in which a kernel ran, read ten times a
second from the second step to the last; runs shorter than a second have none.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ..jobs.phases import in_step as in_step
from .card import NVML, card_state, driver_card

HISTORY = 1_000_000  # events that torch keeps; a step with more has no average
BLOCK = 512  # bytes: the allocator rounds requests up to a multiple of this
SIGN = {"alloc": 1, "free_requested": -1}  # the events that change torch.cuda.memory_allocated()
PERIOD = 0.1  # seconds between readings
FEWEST = 10  # readings that an average needs
TIMED_STEPS = 3


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
        found, rates = driver_card(self.cuda, self.library), UtilizationRates()
        while found is not None and not self.ended.wait(PERIOD):
            nvml, handle = found
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


KB = 1024  # bytes; the unit of /proc
Phases = dict[str, dict[str, int]]


class HostMemory:
    """Measures how far this process's resident memory rises above its value at construction."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self.proc = proc
        with suppress(OSError):  # where this is not allowed, a forked process has a new mark
            (proc / "clear_refs").write_text("5")  # resets the high-water mark; proc(5)
        self.before = self._field("VmRSS")

    def peak_bytes(self) -> int | None:
        """The peak in bytes; None where the system does not report it."""
        peak = self._field("VmHWM")
        return None if peak is None or self.before is None else max(0, peak - self.before)

    def _field(self, name: str) -> int | None:
        try:
            match = re.search(rf"^{name}:\s+(\d+) kB", (self.proc / "status").read_text(), re.M)
        except OSError:
            return None
        return int(match[1]) * KB if match else None


class StepClock:
    """The ends of the steps after the first `probed` ones; `timed` of them are timed."""

    def __init__(self, cuda: Any, probed: int, timed: int = TIMED_STEPS) -> None:
        self.cuda, self.probed, self.timed = cuda, probed, timed
        self.last_phase = ""  # the name of a step's last phase, without the step
        self.ends: list[float] = []
        self.state: dict[str, Any] = {}

    @property
    def steps(self) -> int:
        """The steps that the job runs in all."""
        return self.probed + 1 + self.timed

    def mark(self, name: str) -> bool:
        """Whether the phase is of a step without probes; at the last one of a step, take the time.

        The last phase of a step is known from the probed steps.
        """
        step, _, phase = name.partition(".")
        if not step[1:].isdigit() or int(step[1:]) < self.probed:
            self.last_phase = phase
            return False
        if phase == self.last_phase:
            self.cuda.synchronize()
            self.ends.append(time.perf_counter())
            if len(self.ends) == self.timed + 1:
                self.state = card_state(self.cuda)
        return True

    def measured(self) -> dict[str, Any]:
        """The seconds of each timed step and their median; nothing where none ended."""
        ends = self.ends
        seconds = [round(b - a, 6) for a, b in pairwise(ends)]
        if not seconds:
            return {}
        return {"step_seconds": round(median(seconds), 6), "step_seconds_all": seconds}


class Probe:
    """Marks the phases of one job on the current CUDA device.

    Construct it before anything is on the card: the bytes that the driver shows as used then are
    the CUDA context (and anything else that runs on that card). `steps` is the number of steps:
    averages are of the last one; None for no averages. `on_phase` gets each phase and its figures.
    `timed` steps run after the first `probed` ones without probes; their phases have no figures.
    """

    def __init__(
        self,
        on_phase: Callable[[str, dict[str, int]], None],
        steps: int | None = None,
        *,
        probed: int = 0,
        timed: int = 0,
    ) -> None:
        self.cuda: Any = import_module("torch").cuda
        self.on_phase = on_phase
        self.cuda.init()
        free, self.total = self.cuda.mem_get_info()
        self.context_bytes = self.total - free
        self.phases: Phases = {}
        self.device: list[int] = []
        self.ends: dict[str, float] = {}
        self.host = HostMemory()
        self.last = f"s{steps - 1}" if steps else None
        self.history = AllocationHistory(self.cuda) if steps else None
        self.busy = UtilizationSampler(self.cuda) if steps else None
        self.averages: dict[str, Any] | None = None
        self.clock = StepClock(self.cuda, probed, timed) if timed else None

    def mark(self, name: str) -> None:
        """End a phase: store its figures, and reset the peaks for the next."""
        if self.clock is not None and self.clock.mark(name):
            self._averages()  # in the step that is not timed, the first one here
            return
        cuda = self.cuda
        cuda.synchronize()
        self.ends[name] = time.monotonic()
        self.device.append(self.total - cuda.mem_get_info()[0])
        self.phases[name] = {
            "start_next_bytes": cuda.memory_allocated(),
            "peak_bytes": cuda.max_memory_allocated(),
            "reserved_bytes": cuda.max_memory_reserved(),
        }
        cuda.reset_peak_memory_stats()
        self.on_phase(name, self.phases[name])
        step = name.partition(".")[0]
        if self.busy is not None and in_step(name) and step != "s0":
            self.busy.start()
        if self.history is not None and step != self.last:
            self.history.restart()

    def measured(self) -> dict[str, Any]:
        """The `measured` part of a row.

        Where a cap made torch free its cache and retry, the reserved bytes are not those of a card
        with enough memory, and are left out.
        """
        figures: dict[str, Any] = dict(peaks(self.phases))
        retries = self.cuda.memory_stats().get("num_alloc_retries", 0)
        if not retries:
            figures["reserved_bytes"] = max(p["reserved_bytes"] for p in self.phases.values())
            figures["device_bytes"] = max(self.device)
        else:
            figures["alloc_retries"] = retries
        figures["context_bytes"] = self.context_bytes
        host, seconds = self.host.peak_bytes(), step_seconds(self.ends)
        if host is not None:
            figures["host_bytes"] = host
        if seconds is not None:
            figures["step_seconds"] = round(seconds, 4)
        timed = self.clock.measured() if self.clock else {}
        return figures | timed | self._averages()

    def counters(self) -> dict[str, int]:
        """Torch's counters and the card's free bytes now: of a run that dies."""
        ended = self.phases.values()
        return {
            "retries": self.cuda.memory_stats().get("num_alloc_retries", 0),
            "allocated_bytes": max(
                [self.cuda.max_memory_allocated(), *(p["peak_bytes"] for p in ended)]
            ),
            "reserved_bytes": max(
                [self.cuda.max_memory_reserved(), *(p["reserved_bytes"] for p in ended)]
            ),
            "free_bytes": self.cuda.mem_get_info()[0],
        }

    def _averages(self) -> dict[str, Any]:
        """The averages of the last probed step, where it was reached; read once."""
        if self.averages is None:
            self.averages = self._read_averages()
        return self.averages

    def _read_averages(self) -> dict[str, Any]:
        ended = [end for name, end in self.ends.items() if name.partition(".")[0] == self.last]
        if self.history is None or self.busy is None or not ended:
            return {}
        average, busy = self.history.average_bytes(max(ended)), self.busy.stop()
        figures = {"average_bytes": average, "utilization_pct": busy}
        return {name: figure for name, figure in figures.items() if figure is not None}

    def pinned_bytes(self) -> int:
        """Peak bytes of page-locked host memory, which the kernel may not count as resident."""
        return int(self.cuda.host_memory_stats().get("allocated_bytes.peak", 0))


SERVED = ("prefill", "generate")  # the phases of inference after the model is loaded


def peaks(phases: Phases) -> dict[str, int]:
    """Peak bytes of the steps or of inference, and of start-up."""
    run = [name for name in phases if in_step(name) or name in SERVED]
    steps = [phases[name]["peak_bytes"] for name in run]
    others = [p["peak_bytes"] for name, p in phases.items() if name not in run]
    if not steps:
        return {"allocated_bytes": max(others)} if others else {}
    startup = {"startup_bytes": max(others)} if others else {}
    return {"allocated_bytes": max(steps), **startup}


def step_seconds(ends: dict[str, float]) -> float | None:
    """Seconds of the last step: from the end of the phase before it to its last phase's end."""
    steps = [name.partition(".")[0] for name in ends if in_step(name)]
    if not steps:
        return None
    before = [end for name, end in ends.items() if name.partition(".")[0] != steps[-1]]
    return max(ends.values()) - max(before) if before else None
