"""Estimates against runs measured on an H200, with an error budget for each group of runs.

A budget is what the model of that group reaches today, rounded up: a change that makes a group
worse fails here. `allocated`, `reserved` and `device` are what torch and nvidia-smi show, `needs`
is the least memory that a run survives in, `host` what its process takes of the host's memory.
Blocks that differ by one place in the order of frees are cut otherwise, so reserved memory is off
by more than what is allocated.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gpu_mem_calculator.backtest.rows import read_rows
from gpu_mem_calculator.backtest.score import BacktestReport, backtest
from gpu_mem_calculator.core.calculator import full_estimate
from tests.conftest import measured_runs

HERE = Path(__file__).parent

# (file, group): mean and worst of the absolute error of each figure, in percent
BUDGETS = {
    ("runs", "single"): {
        "allocated": (0.01, 0.03), "reserved": (0.33, 2.3), "needs": (0.14, 0.31),
        "device": (0.32, 2.3),
    },
    ("runs", "ddp"): {"allocated": (0.01, 0.01), "reserved": (0.31, 0.41), "device": (0.3, 0.39)},
    ("runs", "fsdp"): {
        "allocated": (0.01, 0.01), "reserved": (0.01, 0.03), "needs": (0.11, 0.19),
        "device": (0.01, 0.03),
    },
    ("runs", "inference"): {
        "allocated": (0.01, 0.01), "reserved": (0.13, 0.46), "device": (0.07, 0.22),
    },
    ("runs", "peft"): {"allocated": (0.01, 0.02), "reserved": (0.09, 0.21), "device": (0.08, 0.2)},
    ("runs", "deepspeed"): {
        "allocated": (0.01, 0.02), "reserved": (0.38, 2.5), "device": (0.33, 2.1),
    },
    ("runs", "megatron"): {
        "allocated": (0.01, 0.01), "reserved": (0.09, 0.4), "device": (0.09, 0.4),
    },
    ("serving_transformers", "inference"): {
        "allocated": (0.04, 0.8), "reserved": (0.21, 3), "device": (0.19, 2.6),
    },
    ("families", "single"): {
        "allocated": (0.02, 0.7), "reserved": (0.95, 8.7), "device": (0.9, 7.2),
    },
    ("families", "ddp"): {
        "allocated": (0.01, 0.01), "reserved": (0.08, 0.14), "device": (0.07, 0.13),
    },
    ("families", "fsdp"): {
        "allocated": (0.01, 0.01), "reserved": (0.02, 0.03), "device": (0.01, 0.03),
    },
    ("engines", "deepspeed"): {
        "allocated": (0.01, 0.11), "reserved": (0.11, 1.45), "device": (0.12, 1.4),
    },
    ("engines", "peft"): {"allocated": (0.01, 0.02), "reserved": (0.24, 1.6), "device": (0.3, 1.5)},
    ("engines", "megatron"): {
        "allocated": (0.01, 0.01), "reserved": (0.2, 1), "device": (0.19, 0.95),
    },
    ("random", "single"): {"allocated": (0.02, 0.16), "reserved": (1.05, 13), "device": (1, 11)},
    ("random", "fsdp"): {"allocated": (0.03, 0.25), "reserved": (0.37, 3.3), "device": (0.36, 3.3)},
    ("random", "ddp"): {"allocated": (0.08, 0.42), "reserved": (0.8, 2.5), "device": (0.75, 2.5)},
    ("unseen", "single"): {
        "allocated": (0.01, 0.04), "reserved": (0.95, 8.7), "device": (0.9, 8.6),
    },
    ("unseen", "fsdp"): {"allocated": (0.01, 0.02), "reserved": (0.9, 3), "device": (0.8, 2.8)},
    ("unseen", "ddp"): {"allocated": (0.01, 0.02), "reserved": (1.8, 5.4), "device": (1.7, 5.1)},
    ("options", "single"): {
        "allocated": (0.01, 0.13), "reserved": (0.3, 6.1), "needs": (0.22, 0.55),
        "device": (0.27, 5.8), "host": (4.8, 22),
    },
    ("options", "peft"): {
        "allocated": (0.01, 0.01), "reserved": (0.01, 0.01), "device": (0.35, 1.4),
        "host": (0.39, 0.6),
    },
    ("options", "ddp"): {
        "allocated": (0.01, 0.03), "reserved": (1.25, 6), "needs": (0.24, 0.24),
        "device": (1.15, 5.6), "host": (4.1, 15),
    },
    ("options", "deepspeed"): {
        "allocated": (0.01, 0.05), "reserved": (0.11, 2.2), "device": (0.1, 2.1),
        "host": (6.7, 26),
    },
    ("options", "fsdp"): {
        "allocated": (0.01, 0.05), "reserved": (0.1, 0.65), "needs": (1.7, 3.5),
        "device": (0.09, 0.6), "host": (4.6, 26),
    },
    ("options", "megatron"): {
        "allocated": (0.03, 0.18), "reserved": (0.85, 4.2), "device": (0.75, 4),
        "host": (5.6, 17),
    },
    ("host", "fsdp"): {
        "allocated": (0.01, 0.01), "reserved": (0.03, 0.12), "device": (0.09, 0.21),
        "host": (0.55, 2.5),
    },
    ("host", "peft"): {
        "allocated": (0.02, 0.06), "reserved": (0.02, 0.04), "device": (1, 1.25),
        "host": (5.7, 17),
    },
    ("host", "single"): {
        "allocated": (0.1, 0.18), "reserved": (0.43, 0.65), "device": (0.37, 0.51),
        "host": (8.3, 16),
    },
    ("host", "deepspeed"): {
        "allocated": (0.04, 0.48), "reserved": (1.2, 12), "device": (1.15, 12),
        "host": (8.2, 40),
    },
    ("kept", "single"): {
        "allocated": (0.01, 0.02), "reserved": (3.1, 8.9), "needs": (3.6, 11),
        "device": (2.9, 8.4), "host": (8.2, 17),
    },
    ("kept", "fsdp"): {
        "allocated": (0.03, 0.06), "reserved": (0.04, 0.12), "needs": (1.1, 3.2),
        "device": (0.05, 0.13), "host": (13, 18),
    },
    ("kept", "deepspeed"): {
        "allocated": (0.05, 0.13), "reserved": (0.07, 0.09), "needs": (0.55, 1.45),
        "device": (0.05, 0.07), "host": (9.8, 20),
    },
    ("kept", "ddp"): {
        "allocated": (0.01, 0.01), "reserved": (0.19, 0.28), "needs": (3, 5),
        "device": (0.17, 0.24), "host": (4.1, 5.2),
    },
}  # fmt: skip
FILES = tuple(dict.fromkeys(name for name, _ in BUDGETS))
CASES = [(*key, metric) for key, budgets in BUDGETS.items() for metric in budgets]


@cache
def report(name: str) -> BacktestReport:
    """One file against the estimate."""
    return backtest(read_rows(HERE / f"{name}.jsonl"))


@pytest.mark.parametrize("name", FILES)
def test_every_figure_of_every_group_has_a_budget(name: str) -> None:
    """No run is left out."""
    metrics = ("allocated", "reserved", "needs", "device", "host")
    there = {(group, metric) for group in report(name).groups for metric in metrics
             if report(name).summary(metric, group).n}  # fmt: skip
    assert there == {(group, metric) for file, group, metric in CASES if file == name}


@pytest.mark.parametrize(("name", "group", "metric"), CASES)
def test_a_group_stays_within_its_error_budget(name: str, group: str, metric: str) -> None:
    """The mean and the worst error of a group are no larger than its budget."""
    found, errors = (
        report(name).summary(metric, group),
        report(name).errors(metric, group),
    )
    limit_mean, limit_worst = BUDGETS[name, group][metric]
    assert (found.mean_abs_pct or 0) <= limit_mean, errors
    assert (found.worst_abs_pct or 0) <= limit_worst, errors


@pytest.mark.parametrize("name", FILES)
def test_no_run_is_refused(name: str) -> None:
    """Whatever was measured can be estimated, the allocator's settings included."""
    assert not report(name).refused


@pytest.mark.parametrize("name", FILES)
def test_the_parameter_counts_are_the_measured_ones(name: str) -> None:
    """A model that was measured has exactly the parameters that we count."""
    for row in measured_runs(name):
        if "num_parameters" in row and "training" in row["config"]:
            counted = full_estimate(row["config"], replay=False).result.num_parameters
            assert counted == row["num_parameters"], row["id"]
