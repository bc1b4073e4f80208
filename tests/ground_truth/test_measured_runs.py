"""The files of measured runs: every model in them has the parameters that were measured.

Their errors are scored in tests/docs: no group may be worse than docs/scored.json says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from tests.conftest import measured_runs

SERVING_LOGS = {"serving", "llamacpp", "vllm", "speeds"}  # start-up logs and speeds, no runs
FILES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.jsonl")
    if path.stem.partition("_")[0] not in SERVING_LOGS
)


@pytest.mark.parametrize("name", FILES)
def test_the_parameter_counts_are_the_measured_ones(name: str) -> None:
    """A model that was measured has exactly the parameters that we count."""
    for row in measured_runs(name):
        if "num_parameters" in row and "training" in row["config"]:
            counted = full_estimate(row["config"], replay=False).result.num_parameters
            assert counted == row["num_parameters"], row["id"]
