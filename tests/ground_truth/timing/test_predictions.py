"""Predicted step times against public ones: a sample in `make test`, every row in `make proof`."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.docs.test_documents import script

from .predict import predictions
from .score import score
from .translate import TimedRun, every_run

SAMPLE = 8  # rows of each source, evenly spread
# mean error in percent that a sample of a source may have
BUDGETS = {
    "vTrain": 10.0,
    "BigScience": 14.0,
    "llm-foundry": 15.0,
    "NVIDIA dgxc": 6.0,
    "InternEvo": 25.0,
    "Megatron SC21": 10.0,
    "Korthikanti": 7.0,
    "MegaScale": 9.0,
    "stas00": 8.0,
    "Llama 3": 19.0,
}


def sample(source: str) -> list[TimedRun]:
    """Rows of a source, evenly spread."""
    runs = [run for run in every_run()[0] if run.source == source]
    return runs[:: max(1, len(runs) // SAMPLE)][:SAMPLE]


@pytest.mark.parametrize("source", BUDGETS)
def test_a_sample_of_a_source_stays_within_its_budget(source: str) -> None:
    """Its mean error, and that steps are neither free nor endless."""
    found = predictions(sample(source)).found
    assert len(found) >= len(sample(source)) - 2  # unequal stages are refused
    assert score(found).mean < BUDGETS[source]
    assert all(0 < one.low < one.estimate < one.high for one in found)


@pytest.mark.proof
def test_the_page_says_what_every_row_says_now() -> None:
    """`python docs/timing.py` would change nothing."""
    timing = script("timing")
    page = (ROOT / "docs" / "timing.md").read_text("utf-8")
    assert timing["filled"](page, timing["bodies"]()) == page
