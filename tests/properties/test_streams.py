"""The estimate's stream of allocations reaches exactly what its ledger says, whatever the run."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import STEP
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.random_runs.runs import run_file
from tests.streams import highest, rolled_and_written

SEED = 11
NUM_RUNS = 60


def runs() -> list[dict[str, Any]]:
    """Random runs of one GPU or DDP."""
    drawn = (run_file(SEED, index) for index in count())
    plain = (run for run in drawn if run["engine"]["type"] == "pytorch_ddp")
    return list(islice(plain, NUM_RUNS))


@pytest.mark.parametrize("run", runs(), ids=lambda run: run["model"]["config"]["model_type"])
def test_a_stream_is_as_high_as_its_ledger(run: dict[str, Any]) -> None:
    """To the byte: they come from the same tables."""
    found = resolve(read(run).file)
    ledger, asked = rolled_and_written(found)
    assert highest(asked) == int(ledger.peak(phases=STEP))
