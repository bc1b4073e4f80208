"""The host memory of a process and the peaks of its phases, read from /proc and from torch."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

Figures = dict[str, int]
PERIOD = 0.005  # seconds between two readings
EVERY = 20  # readings of the process to one of its loader's workers
RESIDENT = ("VmRSS", "RssAnon", "RssFile", "RssShmem")
CACHESTAT = 451  # the system call's number, on every architecture


def status(process: str | int = "self") -> Figures:
    """What /proc/PROCESS/status says about memory, in bytes."""
    wanted = (*RESIDENT, "VmHWM", "VmPin", "VmLck")
    text = Path(f"/proc/{process}/status").read_text()
    lines = (line.split() for line in text.splitlines())
    return {one[0][:-1]: int(one[1]) * 1024 for one in lines if one and one[0][:-1] in wanted}


def proportional(process: str | int = "self") -> int | None:
    """Resident memory in which a page that several processes share counts in parts."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return None


def cgroup() -> Figures:
    """Memory of this process's group as a container's limit counts it, with the page cache."""
    found = {}
    with suppress(OSError, IndexError):
        inside = Path("/proc/self/cgroup").read_text().splitlines()[-1].split("::")[-1]
        for name in ("memory.current", "memory.peak"):
            for folder in (Path("/sys/fs/cgroup" + inside), Path("/sys/fs/cgroup")):
                with suppress(OSError, ValueError):
                    found.setdefault(name, int((folder / name).read_text()))
    return found


def forget_peak() -> bool:
    """Let VmHWM begin anew; False where that is not allowed."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


def workers() -> list[int]:
    """The processes that this one started."""
    found, own = [], str(os.getpid())
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == own:
                found.append(int(path.parent.name))
    return found


def cached_bytes(files: Iterable[Path]) -> int | None:
    """How much of some files lies in the page cache; None where the kernel does not say."""
    libc, total = ctypes.CDLL(None, use_errno=True), 0
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        span = (ctypes.c_uint64 * 2)(0, path.stat().st_size)
        found = (ctypes.c_uint64 * 5)()
        failed = libc.syscall(CACHESTAT, handle, span, found, 0)
        os.close(handle)
        if failed:
            return None
        total += found[0] * os.sysconf("SC_PAGE_SIZE")
    return int(total)


def drop(files: Iterable[Path]) -> None:
    """Put files out of the page cache."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


class Reader(threading.Thread):
    """Reads the process every few milliseconds and keeps the highest values."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended, self.lock = threading.Event(), threading.Lock()
        self.highest: Figures = {}
        self.of_workers: Figures = {}
        self.start()

    def run(self) -> None:
        """Read until `ended`."""
        count = 0
        while not self.ended.wait(PERIOD):
            self.read(with_workers=count % EVERY == 0)
            count += 1

    def read(self, *, with_workers: bool) -> None:
        """One reading."""
        now = status()
        with self.lock:
            for name in RESIDENT:
                self.highest[name] = max(self.highest.get(name, 0), now.get(name, 0))
        if with_workers:
            self._read_workers()

    def _read_workers(self) -> None:
        total: Figures = {}
        for process in workers():
            with suppress(OSError):
                figures = status(process)
                figures["Pss"] = proportional(process) or 0
                for name in ("VmRSS", "RssAnon", "RssShmem", "Pss"):
                    total[name] = total.get(name, 0) + figures.get(name, 0)
                total["count"] = total.get("count", 0) + 1
        with self.lock:
            for name, value in total.items():
                self.of_workers[name] = max(self.of_workers.get(name, 0), value)

    def take(self) -> tuple[Figures, Figures]:
        """The highest values since the last call."""
        self.read(with_workers=False)
        with self.lock:
            found = self.highest, self.of_workers
            self.highest, self.of_workers = {}, {}
        return found


class Phases:
    """GPU and host memory at the end of each phase, and the highest within it."""

    def __init__(self, torch: Any) -> None:
        self.cuda = torch.cuda
        self.real = torch.backends.cuda.is_built()  # to ask the driver would take memory
        self.found: dict[str, Any] = {}
        self.host: dict[str, Figures] = {}
        self.steps: list[Figures] = []
        self.mark = 0  # the highest VmHWM so far
        self.resets = forget_peak()
        self.reader = Reader()

    def note(self, name: str) -> None:
        """Keep the host's figures before the first phase."""
        self.host[name] = self._host()

    def end(self, name: str) -> None:
        """The end of a phase."""
        figures: dict[str, Any] = dict.fromkeys(
            ("peak_bytes", "start_next_bytes", "reserved_bytes"), 0
        )
        if self.real and self.cuda.is_initialized():
            self.cuda.synchronize()
            figures["peak_bytes"] = self.cuda.max_memory_allocated()
            figures["start_next_bytes"] = self.cuda.memory_allocated()
            figures["reserved_bytes"] = self.cuda.max_memory_reserved()
            figures["reserved_at_end_bytes"] = self.cuda.memory_reserved()
        figures["host"] = self._host()
        self.found[name] = figures
        self.begin()

    def begin(self) -> None:
        """GPU peaks begin anew."""
        if self.real and self.cuda.is_initialized():
            self.cuda.synchronize()
            self.cuda.reset_peak_memory_stats()

    def end_step(self) -> None:
        """The end of an optimizer step."""
        if self.real:
            self.cuda.synchronize()
            peak, reserved = self.cuda.max_memory_allocated(), self.cuda.max_memory_reserved()
            self.steps.append({"peak_bytes": peak, "reserved_bytes": reserved})

    def _host(self) -> dict[str, Any]:
        highest, of_workers = self.reader.take()
        now: dict[str, Any] = dict(status())
        own = now["VmHWM"] if self.resets else highest["VmRSS"]
        self.mark = max(self.mark, now["VmHWM"])
        now |= {"VmHWM": self.mark, "VmPeakPhase": own, "highest": highest}
        now["Pss"] = proportional()
        now["cgroup"] = cgroup()
        if of_workers:
            now["workers"] = of_workers
        forget_peak()
        return now

    def close(self) -> dict[str, Any]:
        """The highest of all phases and steps."""
        self.reader.ended.set()
        peaks = [*self.found.values(), *self.steps]
        measured: dict[str, Any] = {
            "allocated_bytes": max(one["peak_bytes"] for one in peaks),
            "reserved_bytes": max(one["reserved_bytes"] for one in peaks),
            "host": self.host,
            "high_water_mark": "reset between phases" if self.resets else "cumulative",
        }
        if self.real and self.cuda.is_initialized():
            stats = self.cuda.memory_stats()
            measured["alloc_retries"] = stats["num_alloc_retries"]
            segments = self.cuda.memory_snapshot()
            measured["expandable"] = any(one.get("is_expandable") for one in segments)
        return measured
