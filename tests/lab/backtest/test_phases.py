"""Names of measured phases, and the peaks that a replay has for them."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.lab.backtest.phases import replayed_peaks, title
from gpu_mem_calculator.lab.backtest.predict import _traced_peak
from gpu_mem_calculator.lab.jobs.phases import parse
from gpu_mem_calculator.pytorch.replay.footprint import ReplayPhase
from gpu_mem_calculator.training.step.stream import STARTUP_MARK

PEAKS = {
    STARTUP_MARK: 5,
    **{"s0.a0.fwd": 10, "s0.a0.bwd": 20, "s0.a1.fwd": 30, "s0.a1.bwd": 40, "s0.opt": 50},
    **{"s1.a0.fwd": 60, "s1.a0.bwd": 70, "s1.a1.fwd": 90, "s1.a1.bwd": 80, "s1.opt": 100},
}


def replay(peaks: dict[str, int]) -> dict[str, ReplayPhase]:
    """Phases of a replay with these peaks."""
    return {name: ReplayPhase(peak, 0, peak) for name, peak in peaks.items()}


@pytest.mark.parametrize(
    ("name", "step", "micro_batch", "kind"),
    [("s0.fwd", 0, None, "fwd"), ("s12.a3.bwd", 12, 3, "bwd"), ("s1.m0.opt", 1, 0, "opt")],
)
def test_a_name_has_step_micro_batch_and_kind(
    name: str, step: int, micro_batch: int | None, kind: str
) -> None:
    """Micro-batches are counted as `a` or `m`."""
    phase = parse(name)
    assert phase is not None
    assert (phase.step, phase.micro_batch, phase.kind) == (step, micro_batch, kind)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("s0.fwd", "first step: forward"),
        ("s1.opt", "later steps: optimizer"),
        ("s2.a1.fwdbwd", "later steps: forward and backward"),
        ("init", "start-up: init"),
        ("prefill", "inference: prefill"),
        ("generate", "inference: generate"),
        ("load", "start-up: load"),
    ],
)
def test_a_phase_has_a_title(name: str, words: str) -> None:
    """The first step is apart."""
    assert title(name) == words


@pytest.mark.parametrize(
    ("names", "micro_batches", "peaks"),
    [
        (("s0.fwd", "s0.bwd"), 2, [30, 40]),
        (("s0.bwd",), 2, [40]),  # without a forward phase it is in the backward one
        (("s1.bwd",), 2, [90]),
        (("s0.a0.fwd", "s0.a0.bwd", "s0.a1.fwd"), 2, [10, 20, 30]),
        (("s1.a7.fwd",), 8, [90]),  # later micro-batches are like the last replayed one
        (("s9.a0.fwd",), 2, [60]),  # and so are later steps
        (("s0.opt", "s1.opt"), 2, [50, 100]),
        (("s0.a0.opt", "s0.a1.opt"), 2, [None, 50]),
        (("s0.sync",), 2, [None]),
        (("model",), 2, [5]),
        (("model", "init"), 2, [None, None]),
    ],
)
def test_a_measured_phase_has_the_highest_of_its_parts(
    names: tuple[str, ...], micro_batches: int, peaks: list[int | None]
) -> None:
    """Start-up is one phase of a replay, so it is known where one phase was measured."""
    predicted = replayed_peaks(replay(PEAKS), names, micro_batches)
    assert [predicted.get(name) for name in names] == peaks


@pytest.mark.parametrize(
    ("names", "replayed", "peaks"),
    [
        (("load", "prefill", "generate"), {"load": 1, "prefill": 2}, {"load": 1, "prefill": 2}),
        (("prefill",), {"load": 1, "prefill": 2}, {"prefill": 2}),
        (("prefill",), {"load": 1}, {}),
    ],
)
def test_an_inference_phase_is_measured_and_replayed(
    names: tuple[str, ...], replayed: dict[str, int], peaks: dict[str, int]
) -> None:
    """One that is only measured, or only replayed, has no prediction."""
    assert replayed_peaks(replay(replayed), names, 1) == peaks


@pytest.mark.parametrize(
    ("name", "peak"),
    [("s1.fwd", 2), ("s2.fwd", 2), ("s0.fwd", 1), ("s2.opt", None), ("init", None)],
)
def test_steps_after_the_last_traced_one_are_like_it(name: str, peak: int | None) -> None:
    """A phase that was not traced has no peak."""
    assert _traced_peak({"s0.fwd": 1, "s1.fwd": 2}, name) == peak


def test_a_trace_of_the_first_step_says_nothing_of_later_ones() -> None:
    """In the first step the optimizer states are not yet there."""
    assert _traced_peak({"s0.fwd": 1}, "s1.fwd") is None
