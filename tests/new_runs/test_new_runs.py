"""Run files that wait to be measured: each is accepted, has its own id, and fits on the card."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase, read_cases
from gpu_mem_calculator.lab.measure.program import program
from gpu_mem_calculator.ledger.units import GIB
from tests.corpus import sampled

FILES = sorted(Path(__file__).parent.glob("*.jsonl"))
CASES = [(file.stem, case) for file in FILES for case in read_cases(file)]
MOST = 60 * GIB


@pytest.mark.parametrize(("file", "case"), sampled(CASES, 20))
def test_a_case_can_be_measured(file: str, case: MeasureCase) -> None:
    """It has a program, and its tensors take less than the limit."""
    program(case.config)
    estimate = full_estimate(case.config, replay=False)
    assert 0 < max(int(ledger.peak()) for ledger in estimate.ledgers) < MOST
