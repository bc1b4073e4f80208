"""`CLEAR`: where the ledger alone decides, a replay would decide the same."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.fit_verdict import CLEAR, clear_verdict
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines import engine_names
from tests.conftest import measured_runs
from tests.corpus import sampled
from tests.golden.stored_runs import run_file, stored_settings
from tests.golden.test_training import file_of

MEASURED = ("runs", "engines", "options", "families", "random", "unseen", "megatron_deepspeed")
GOLDEN = [one for name in engine_names() for one in stored_settings(file_of(name))]
ROWS = {
    f"{name}-{row['id']}": row["config"]
    for name in MEASURED
    for row in measured_runs(name)
    if not {"function", "record"} & set(row)
}


def _check(run: dict[str, Any]) -> None:
    try:
        made = full_estimate(run)
    except InputError:
        return
    result, replayed = made.result, made.replayed
    if replayed is None:
        return
    by_ledger = full_estimate(run, replay=False).result
    outside = result.outside_torch_bytes
    step = by_ledger.allocated_bytes + outside
    highest = max(step, (by_ledger.startup_bytes or 0) + outside)
    needs, margin = replayed.needs_bytes, replayed.margin_bytes
    assert needs + outside >= step
    assert needs + margin + outside <= CLEAR * highest


@pytest.mark.parametrize("settings", sampled(GOLDEN, 24))
def test_golden_runs_need_what_the_ledger_bounds(settings: str) -> None:
    """At least the tensors of a step, at most `CLEAR` times the highest instant."""
    _check(run_file(settings))


@pytest.mark.parametrize("run", sampled(ROWS, 12))
def test_measured_runs_need_what_the_ledger_bounds(run: dict[str, Any]) -> None:
    """The same of runs that were measured."""
    _check(run)


@pytest.mark.parametrize(
    ("has", "word"),
    [(999, "does_not_fit"), (1000, "cannot_tell"), (1649, "cannot_tell"), (1650, "fits")],
)
def test_between_the_bounds_a_replay_decides(has: int, word: str) -> None:
    """Start-up, which takes 1,100 here, counts for the upper bound alone."""
    assert clear_verdict(1000, 1100, has) == word
