"""Estimates against runs measured on an H200, with an error budget for each group of runs.

A budget is what the model of that group reaches today, rounded up: a change that makes a group
worse fails here. What is left is mostly the allocator: what a block that is used again has left
over, which an estimate does not model.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gpu_mem_calculator.backtest.rows import read_rows
from gpu_mem_calculator.backtest.score import Report, backtest
from gpu_mem_calculator.core.calculator import full_estimate
from tests.conftest import measured_runs

HERE = Path(__file__).parent

# (file, group): mean and worst of the absolute error of the allocated peak, in percent
BUDGETS = {
    ("runs", "single"): (0.07, 0.25),
    ("runs", "ddp"): (0.01, 0.02),
    ("runs", "fsdp"): (0.04, 0.1),
    ("runs", "deepspeed"): (0.02, 0.03),
    ("runs", "peft"): (0.12, 0.33),
    ("runs", "megatron"): (0.08, 0.3),
    ("runs", "inference"): (0.01, 0.01),
    ("serving_transformers", "inference"): (0.09, 0.9),
    ("families", "single"): (0.06, 0.85),
    ("families", "ddp"): (0.02, 0.03),
    ("families", "fsdp"): (0.03, 0.05),
    ("engines", "deepspeed"): (0.22, 1.25),
    ("engines", "peft"): (0.1, 0.6),
    ("engines", "megatron"): (0.04, 0.12),
    ("random", "single"): (0.08, 0.5),
    ("random", "ddp"): (0.8, 4.0),
    ("random", "fsdp"): (0.08, 0.4),
    ("unseen", "single"): (0.05, 0.35),
    ("unseen", "ddp"): (0.35, 0.9),
    ("unseen", "fsdp"): (0.05, 0.25),
    ("options", "single"): (0.05, 0.5),
    ("options", "peft"): (0.08, 0.1),
    ("options", "ddp"): (0.18, 0.35),
    ("options", "fsdp"): (0.16, 0.65),
    ("options", "deepspeed"): (0.17, 0.95),
    ("options", "megatron"): (0.13, 0.55),
}
FILES = tuple(dict.fromkeys(name for name, _ in BUDGETS))


@cache
def report(name: str) -> Report:
    """One file against the estimate."""
    return backtest(read_rows(HERE / f"{name}.jsonl"))


def test_every_group_has_a_budget() -> None:
    """No run is left out."""
    assert {(name, group) for name in FILES for group in report(name).groups} == set(BUDGETS)


@pytest.mark.parametrize(("name", "group"), BUDGETS)
def test_a_group_stays_within_its_error_budget(name: str, group: str) -> None:
    """The mean and the worst error of a group are no larger than its budget."""
    found, errors = (
        report(name).summary("allocated", group),
        report(name).errors("allocated", group),
    )
    limit_mean, limit_worst = BUDGETS[name, group]
    assert (found.mean_abs_pct or 0) <= limit_mean, errors
    assert (found.worst_abs_pct or 0) <= limit_worst, errors


def test_what_is_refused_is_the_allocators_settings() -> None:
    """Each with a sentence, instead of a guess."""
    reasons = {one.why for name in FILES for one in report(name).refused}
    assert all("pytorch_alloc_conf" in why for why in reasons)


@pytest.mark.parametrize("name", FILES)
def test_the_parameter_counts_are_the_measured_ones(name: str) -> None:
    """A model that was measured has exactly the parameters that we count."""
    for row in measured_runs(name):
        if "num_parameters" in row and "training" in row["config"]:
            counted = full_estimate(row["config"]).result.num_parameters
            assert counted == row["num_parameters"], row["id"]
