"""Steps without probes are timed at their ends alone."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.lab.measure.probe import Probe, StepClock

from .conftest import FakeCuda

PHASES = ("a0.fwd", "a0.bwd", "opt")


@pytest.fixture
def clock(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> StepClock:
    """A clock that says 0, 1, 3, 6, 10 ... seconds."""
    ticks = iter(n * (n + 1) / 2 for n in range(99))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    return StepClock(cuda, probed=2, timed=3)


def marks(clock: StepClock, steps: int) -> list[bool]:
    """What the clock answers to every phase of these steps."""
    names = [f"s{step}.{phase}" for step in range(steps) for phase in PHASES]
    return [clock.mark(name) for name in ["model", *names]]


def test_probed_steps_are_not_the_clocks(clock: StepClock) -> None:
    """Start-up and the first steps are the probe's, the rest the clock's."""
    assert marks(clock, clock.steps) == [False] * (1 + 2 * 3) + [True] * (4 * 3)


def test_the_step_after_the_probes_is_not_timed(clock: StepClock) -> None:
    """The ends of four steps give three times; the median is the figure."""
    marks(clock, clock.steps)
    assert clock.measured() == {"step_seconds": 2.0, "step_seconds_all": [1.0, 2.0, 3.0]}


def test_a_job_that_ends_early_has_no_time(clock: StepClock) -> None:
    """One end is no step."""
    marks(clock, 3)
    assert clock.measured() == {}


def test_a_probe_leaves_timed_steps_alone(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their phases have no figures, nothing is read between, and the GPU is waited for once."""
    waits: list[str] = []
    monkeypatch.setattr(cuda, "synchronize", lambda: waits.append("wait"))
    probe = Probe(lambda name, figures: None, 1, probed=1, timed=2)
    for step in range(4):
        for phase in PHASES:
            probe.mark(f"s{step}.{phase}")
    assert list(probe.phases) == [f"s0.{phase}" for phase in PHASES]
    assert len(waits) == 3 + 3
    assert len(probe.measured()["step_seconds_all"]) == 2
    assert cuda.history[-1] == "stopped"
