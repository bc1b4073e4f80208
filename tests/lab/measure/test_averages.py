"""Averages of the last step."""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.rows import rows_from
from gpu_mem_calculator.lab.measure import probe as averages
from gpu_mem_calculator.lab.measure.probe import Probe, UtilizationSampler, mean_bytes

from .conftest import FakeCuda

KIB = 1024


def event(action: str, size: int, seconds: float) -> dict[str, Any]:
    """As torch records it."""
    return {"action": action, "size": size, "time_us": int(seconds * 1e6)}


def test_each_size_counts_for_as_long_as_it_lasted() -> None:
    """A quarter of the time with 8 KiB more, half of it with 4."""
    events = [event("alloc", 8 * KIB, 10.5), event("free_requested", 4 * KIB, 11.0)]
    assert mean_bytes(events, 1024, 10.0, 12.0) == 1024 + 2 * KIB + 2 * KIB
    assert mean_bytes([], 1024, 10.0, 12.0) == 1024
    assert mean_bytes([], 1024, 10.0, 10.0) is None


def test_sizes_are_the_allocator_s() -> None:
    """It rounds to 512 bytes; what torch was asked for is what it records."""
    assert mean_bytes([event("alloc", 1, 10.0)], 0, 10.0, 11.0) == 512


def test_events_beside_the_step_count_at_its_ends() -> None:
    """The clocks of the host and of the record may differ by microseconds."""
    assert mean_bytes([event("alloc", 512, 9.9)], 0, 10.0, 11.0) == 512
    assert mean_bytes([event("alloc", 512, 11.1)], 0, 10.0, 11.0) == 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Both clocks of the host, which tests set."""
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    monkeypatch.setattr(time, "time", lambda: found.now + 1000)
    return found


def stepped(cuda: FakeCuda, clock: SimpleNamespace, steps: int | None = 2) -> dict[str, Any]:
    """Two steps of four seconds; in the last one, 4 KiB for two of them."""
    probe = Probe(lambda name, figures: None, steps)
    cuda.use(1024, 1024, 4096)
    probe.mark("model")
    cuda.events.append(event("alloc", 1 << 40, clock.now + 1001))  # of the first step
    clock.now += 4
    probe.mark("s0.opt")
    cuda.events += [
        event("alloc", 4 * KIB, clock.now + 1001),
        event("segment_alloc", 1 << 40, clock.now + 1001),
        event("free_requested", 4 * KIB, clock.now + 1003),
    ]
    clock.now += 4
    probe.mark("s1.opt")
    return probe.measured()


def test_the_last_step_alone_is_averaged(cuda: FakeCuda, clock: SimpleNamespace) -> None:
    """What was before is forgotten, and segments are no tensors; backtest reads the row."""
    measured = stepped(cuda, clock)
    assert measured["average_bytes"] == 1024 + 2 * KIB
    assert cuda.history == ["recording", "recording", "stopped"]
    row = {
        "id": "a",
        "group": "ddp",
        "config": {},
        "measured": {**measured, "utilization_pct": 9.5},
    }
    assert rows_from([row])[0].measured["average_bytes"] == 3 * KIB


def test_without_a_last_step_there_is_no_average(cuda: FakeCuda, clock: SimpleNamespace) -> None:
    """A snapshot keeps torch's history for itself, and inference has no steps."""
    assert "average_bytes" not in stepped(cuda, clock, None)
    assert cuda.history == []
    assert "average_bytes" not in stepped(cuda, clock, 9)


def test_events_that_are_lost_leave_no_average(
    cuda: FakeCuda, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full record begins somewhere in the step."""
    monkeypatch.setattr(averages, "HISTORY", 3)
    assert "average_bytes" not in stepped(cuda, clock)


class FakeNvml:
    """A driver that is busy for a while, then refuses."""

    def __init__(self, readings: int, known: str = "GPU-uuid-0") -> None:
        self.left, self.known = readings, known
        self.done = threading.Event()

    def nvmlInit_v2(self) -> int:  # noqa: N802
        """Ready."""
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        """The card that torch uses, or an error."""
        return 0 if uuid.decode() == self.known else 6

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        """40 percent, then 60."""
        self.left -= 1
        if self.left < 0:
            self.done.set()
            return 3
        rates._obj.gpu = 40 if self.left % 2 else 60
        return 0


@pytest.mark.parametrize(("readings", "percent"), [(10, 50.0), (9, None)])
def test_utilisation_is_the_mean_of_enough_readings(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, readings: int, percent: float | None
) -> None:
    """A second of them; less says nothing."""
    nvml = FakeNvml(readings)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    monkeypatch.setattr(averages, "PERIOD", 0.001)
    busy = UtilizationSampler(cuda)
    busy.start()
    busy.start()  # as every phase does
    assert nvml.done.wait(10)
    assert busy.stop() == percent


def test_a_card_that_the_driver_does_not_know_is_not_read(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a card has no such figure; nor has a machine without the driver."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml(100, "MIG"))
    busy = UtilizationSampler(cuda)
    busy.start()
    assert busy.stop() is None
    monkeypatch.undo()
    busy = UtilizationSampler(cuda, "libno_such_driver.so")
    busy.start()
    assert busy.stop() is None
