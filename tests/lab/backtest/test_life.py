"""A program's life: each phase on the GPU, and the highest memory of its process so far."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.backtest.score import RowScore, backtest

REPORT = backtest(read_rows(Path(__file__).parent / "lives.jsonl"))


@pytest.mark.parametrize("row", REPORT.rows, ids=lambda row: row.id)
def test_each_phase_is_as_measured(row: RowScore) -> None:
    """A Trainer in full, and two with QLoRA: loading, training, evaluation and saving."""
    assert abs(row.metrics["allocated"].error_pct or 0) < 0.1
    assert abs(row.metrics["host"].error_pct or 0) < 2
    assert {"loaded", "trained", "evaluated", "loaded.host", "saved_model.host"} <= set(row.phases)
    errors = [abs(one.error_pct or 0) for one in row.phases.values()]
    assert max(errors) < 3


SEEN = backtest(read_rows(Path(__file__).parents[2] / "lives" / "lives_seen.jsonl"))
HARD = 5.0, 20.0  # per cent: the worst on the GPU and on the host
MEAN = 1.0, 8.0


def test_seen_lives_are_as_measured() -> None:
    """Each phase of 27 lives: of Trainer, LoRA, QLoRA, TRL, FSDP and DeepSpeed."""
    errors: dict[str, list[float]] = {}
    for row in SEEN.rows:
        for name, one in row.phases.items():
            errors.setdefault(name, []).append(abs(one.error_pct or 0))
    assert not SEEN.refused
    assert {"generated", "resumed", "merged", "gathered_model", "saved_merged.host"} <= set(errors)
    for name, found in errors.items():
        on_host = name.endswith(".host")
        assert max(found) < HARD[on_host], name
        assert fmean(found) < MEAN[on_host], name


def test_none_is_refused() -> None:
    """All three are predicted."""
    assert len(REPORT.rows) == 3
    assert not REPORT.refused
