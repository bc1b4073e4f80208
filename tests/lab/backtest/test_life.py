"""A program's life: each phase on the GPU, and the highest memory of its process so far."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.backtest.score import BacktestReport, backtest

LIVES = Path(__file__).parent / "lives.jsonl"


@cache
def report(path: Path) -> BacktestReport:
    """The scores of a file's lives."""
    return backtest(read_rows(path))


@pytest.mark.parametrize("number", range(3))
def test_each_phase_is_as_measured(number: int) -> None:
    """A Trainer in full, and two with QLoRA: loading, training, evaluation and saving."""
    row = report(LIVES).rows[number]
    assert abs(row.metrics["allocated"].error_pct or 0) < 0.1
    assert abs(row.metrics["host"].error_pct or 0) < 2
    assert {"loaded", "trained", "evaluated", "loaded.host", "saved_model.host"} <= set(row.phases)
    errors = [abs(one.error_pct or 0) for one in row.phases.values()]
    assert max(errors) < 3


SEEN = Path(__file__).parents[2] / "lives" / "lives_seen.jsonl"
HARD = 5.0, 20.0  # per cent: the worst on the GPU and on the host
MEAN = 1.0, 8.0


def test_seen_lives_are_as_measured() -> None:
    """Each phase of 27 lives: of Trainer, LoRA, QLoRA, TRL, FSDP and DeepSpeed."""
    errors: dict[str, list[float]] = {}
    for row in report(SEEN).rows:
        for name, one in row.phases.items():
            errors.setdefault(name, []).append(abs(one.error_pct or 0))
    assert not report(SEEN).refused
    assert {"generated", "resumed", "merged", "gathered_model", "saved_merged.host"} <= set(errors)
    for name, found in errors.items():
        on_host = name.endswith(".host")
        assert max(found) < HARD[on_host], name
        assert fmean(found) < MEAN[on_host], name


def test_none_is_refused() -> None:
    """All three are predicted."""
    assert len(report(LIVES).rows) == 3
    assert not report(LIVES).refused
