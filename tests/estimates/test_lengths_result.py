"""Batches that differ in length: what torch reserves after them, in how many orders a run dies."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT, UNSURE
from gpu_mem_calculator.estimates.lengths_result import EXPANDABLE
from gpu_mem_calculator.estimates.result import MemoryResult
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.backtest.score import backtest
from gpu_mem_calculator.report.lengths_words import lengths_words, long_lengths_words
from gpu_mem_calculator.training.lengths.samplers import GROUPED
from tests.conftest import ROOT

GIB = 2**30


def _result(has: float = 80.0, **training: Any) -> MemoryResult:
    return estimate(
        {
            "model": {"name": "pythia-70m"},
            "training": {"batch_size": 4, **training},
            "hardware": {"gpu_memory_bytes": int(has * GIB), "num_gpus": 1},
        }
    )


LENGTHS = [64 + 397 * i % 1900 for i in range(48)]
TRAINER = {"strategy": "random", "data_seed": 42}


def test_measured_runs_are_predicted() -> None:
    """Allocated to 0.1 %, every step to 0.1 %, and what is reserved after the last one to 0.1 %."""
    report = backtest(read_rows(ROOT / "tests" / "training" / "lengths" / "measured.jsonl"))
    assert not report.refused
    for metric in ("allocated", "reserved"):
        assert all(abs(error) < 0.1 for error in report.errors(metric).values())
    steps = [error for rows in report.phase_errors(str).values() for _, error in rows]
    assert len(steps) == 96
    assert max(map(abs, steps)) < 0.1


def test_a_known_order_has_one_answer() -> None:
    """The longest batch decides what is allocated; the order what is reserved."""
    result = _result(lengths=LENGTHS, sampling=TRAINER)
    found = result.lengths
    assert found is not None
    assert (found.known, found.orders, found.probability_to_die) == (True, 1, 0.0)
    assert (found.steps, found.run_steps, found.epoch_steps) == (12, 12, 12)
    assert found.longest_batch.tokens == max(LENGTHS)
    assert found.reserved_after_bytes == result.reserved_bytes
    assert len(result.steps) == 12
    assert max(one.peak_bytes for one in result.steps) == result.allocated_bytes
    constant = _result(seq_len=max(LENGTHS))
    assert result.reserved_bytes is not None
    assert constant.reserved_bytes is not None
    assert result.reserved_bytes > constant.reserved_bytes
    others = {one.setting: one.reserved_after_bytes for one in found.instead}
    assert set(others) == {EXPANDABLE, GROUPED}
    assert all(size < found.reserved_after_bytes for size in others.values())


def test_an_unknown_order_has_a_spread() -> None:
    """The order that is shown reserves the median."""
    found = _result(lengths=LENGTHS).lengths
    assert found is not None
    spread = found.spread
    assert (found.known, found.orders) == (False, 20)
    assert spread.low_bytes < spread.median_bytes < spread.high_bytes
    assert found.reserved_after_bytes == spread.median_bytes


def test_the_verdict_counts_the_orders_that_die() -> None:
    """None, some, or all of them."""
    roomy = _result(lengths={"uniform": [64, 2000]}, sampling={"max_steps": 6})
    assert roomy.verdict == FITS
    assert roomy.needs_bytes is not None
    verdicts: dict[str, list[float]] = {}
    for share in (0.80, 0.9, 0.95, 1.0, 1.05):
        has = share * (roomy.needs_bytes + roomy.outside_torch_bytes) / GIB
        found = _result(has, lengths={"uniform": [64, 2000]}, sampling={"max_steps": 6})
        assert found.lengths is not None
        verdicts.setdefault(found.verdict, []).append(found.lengths.probability_to_die)
        if 0 < found.lengths.probability_to_die < 1:
            assert "of 20 drawn orders of its batches; needs" in verdict_line(found)
    assert set(verdicts) >= {SHORT, UNSURE}
    assert set(verdicts[SHORT]) == {1.0}
    assert any(0 < one < 1 for one in verdicts[UNSURE])


def test_a_step_of_one_micro_batch_among_steps_of_several() -> None:
    """The end of an epoch, with what a checkpoint leaves until the next micro-batch."""
    more = {"gradient_accumulation_steps": 5, "activation_checkpointing": "full", "seq_len": 512}
    result = _result(lengths=LENGTHS[:44], sampling=TRAINER, packing="bfd", **more)
    assert result.lengths is not None
    assert result.verdict == FITS


@pytest.mark.parametrize("known", [True, False])
def test_words(known: bool) -> None:
    """The short report has two sentences, the long one more."""
    result = _result(lengths=LENGTHS, sampling=TRAINER if known else {})
    first, second = lengths_words(result)
    assert first.startswith("longest batch: 4 × 1,")
    assert ("in 20 drawn orders" in first) is not known
    assert "with expandable_segments" in second
    assert len([*long_lengths_words(result)]) == 4
    assert not [*lengths_words(_result(seq_len=128))]
