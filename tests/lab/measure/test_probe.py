"""Counters become figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.lab.measure.probe import HostMemory, Probe, in_step, peaks, step_seconds

from .conftest import CONTEXT, FakeCuda

MIB = 2**20


def test_phases_have_their_own_peaks(cuda: FakeCuda) -> None:
    """Each mark keeps the peak since the last one and what is left."""
    heard: list[str] = []
    probe = Probe(lambda name, figures: heard.append(name))
    cuda.use(100, 150, 4 * MIB)
    probe.mark("model")
    cuda.use(400, 900, 8 * MIB)
    probe.mark("s0.a0.fwd")
    assert probe.phases == {
        "model": {"start_next_bytes": 100, "peak_bytes": 150, "reserved_bytes": 4 * MIB},
        "s0.a0.fwd": {"start_next_bytes": 400, "peak_bytes": 900, "reserved_bytes": 8 * MIB},
    }
    assert heard == ["model", "s0.a0.fwd"]
    assert cuda.peak == 400


def test_the_four_figures(cuda: FakeCuda) -> None:
    """Steps and start-up apart, the context before anything, the device with it."""
    probe = Probe(lambda name, figures: None)
    cuda.use(100, 950, 4 * MIB)
    probe.mark("model")
    cuda.use(400, 900, 8 * MIB)
    probe.mark("s0.opt")
    measured = probe.measured()
    assert measured["allocated_bytes"] == 900
    assert measured["startup_bytes"] == 950
    assert measured["reserved_bytes"] == 8 * MIB
    assert measured["device_bytes"] == 8 * MIB + CONTEXT
    assert measured["context_bytes"] == CONTEXT
    assert measured["host_bytes"] >= 0


def test_what_was_reserved_under_pressure_is_left_out(cuda: FakeCuda) -> None:
    """After a freed cache the reserved peak is not that of a roomy card."""
    probe = Probe(lambda name, figures: None)
    probe.mark("s0.opt")
    cuda.retries = 1
    assert not {"reserved_bytes", "device_bytes"} & set(probe.measured())


def test_inference_has_no_steps() -> None:
    """What runs behind loading is the allocated peak; without it, the highest of all phases."""
    phases = {"load": {"peak_bytes": 5}, "generate": {"peak_bytes": 4}}
    assert peaks(phases) == {"allocated_bytes": 4, "startup_bytes": 5}
    assert peaks({"load": {"peak_bytes": 5}}) == {"allocated_bytes": 5}
    assert peaks({}) == {}


@pytest.mark.parametrize(
    ("name", "step"),
    [("s0.a0.fwd", True), ("s12.opt", True), ("model", False), ("sync", False), ("s.x", False)],
)
def test_steps_are_known_by_their_names(name: str, step: bool) -> None:
    """`s<number>` begins a step's phase."""
    assert in_step(name) is step


def test_the_last_step_is_timed() -> None:
    """From the last end before it to its own."""
    ends = {"model": 1.0, "s0.fwd": 5.0, "s0.opt": 6.0, "s1.fwd": 6.5, "s1.opt": 7.25}
    assert step_seconds(ends) == 1.25
    assert step_seconds({"model": 1.0}) is None
    assert step_seconds({"s0.opt": 1.0}) is None


def test_host_memory_is_the_rise_of_the_resident_peak(tmp_path: Path) -> None:
    """VmHWM at the end minus VmRSS at the start."""
    (tmp_path / "status").write_text("VmHWM:\t  500 kB\nVmRSS:\t  400 kB\n")
    host = HostMemory(tmp_path)
    (tmp_path / "status").write_text("VmHWM:\t 1400 kB\nVmRSS:\t  600 kB\n")
    assert host.peak_bytes() == 1000 * 1024


def test_host_memory_of_this_process_is_measured() -> None:
    """Fifty megabytes that are used and given back show in the peak."""
    host = HostMemory()
    data = bytearray(b"x") * (50 * MIB)
    assert len(data) == 50 * MIB
    del data
    peak = host.peak_bytes()
    assert peak is not None
    assert peak >= 40 * MIB


def test_a_system_without_proc_says_nothing(tmp_path: Path) -> None:
    """No figure is better than a wrong one."""
    assert HostMemory(tmp_path / "none").peak_bytes() is None
