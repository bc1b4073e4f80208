"""Estimates of servers against start-up logs that people published, with an error budget each.

A budget is what is reached today, rounded up: a change that makes an engine worse fails here. Logs
round to 0.01 GiB and leave options out, so small figures are off by more than large ones.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gpu_mem_calculator.backtest.rows import read_rows
from gpu_mem_calculator.backtest.score import Report, backtest

HERE = Path(__file__).parent

# (file, engine): mean and worst of the absolute error of each figure, in percent
BUDGETS: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("serving", "vllm"): {
        "weights": (0.07, 0.2), "activation": (25, 230), "non_torch": (25, 93),
        "kv_pool": (0.7, 3.2), "kv_tokens": (2.3, 2.3),
    },
    ("serving", "sglang"): {"kv_pool": (0.95, 2.4), "kv_tokens": (0.13, 1.7)},
    ("serving_vllm", "vllm"): {
        "weights": (0.17, 2.0), "activation": (0.85, 16.1), "non_torch": (4.2, 46),
        "graph": (8.4, 58), "kv_pool": (0.21, 3.7), "kv_tokens": (0.21, 3.7),
    },
    ("serving_sglang", "sglang"): {
        "weights": (0.27, 1.5), "graph": (12, 30), "kv_pool": (0.41, 2.4), "kv_tokens": (0.09, 1),
    },
    ("serving_tensorrt_llm", "tensorrt_llm"): {
        "weights": (0.29, 0.9), "activation": (2.3, 14), "kv_pool": (2.4, 5.0),
        "kv_tokens": (2.4, 5.0),
    },
    ("serving_llamacpp", "llamacpp"): {
        "weights": (0.06, 1), "activation": (0.02, 0.3), "kv_pool": (0.01, 0.01),
        "kv_tokens": (0, 0),
    },
    ("serving_tgi", "tgi"): {"kv_pool": (2.9, 7.9), "kv_tokens": (2.9, 7.9)},
}  # fmt: skip
FILES = tuple(dict.fromkeys(name for name, _ in BUDGETS))
CASES = [(*key, metric) for key, budgets in BUDGETS.items() for metric in budgets]


@cache
def report(name: str) -> Report:
    """One file against the estimate."""
    return backtest(read_rows(HERE / f"{name}.jsonl"))


@pytest.mark.parametrize("name", FILES)
def test_every_log_is_expressed_and_every_verdict_right(name: str) -> None:
    """Nothing is refused, and a server that did not start is told so."""
    found = report(name)
    assert found.refused == ()
    verdicts = [row.metrics["fits"] for row in found.rows if "fits" in row.metrics]
    assert all(one.predicted == one.measured for one in verdicts)


@pytest.mark.parametrize(("name", "engine", "metric"), CASES)
def test_an_engine_stays_within_its_budget(name: str, engine: str, metric: str) -> None:
    """Mean and worst of one figure."""
    errors = [abs(error) for error in report(name).errors(metric, engine).values()]
    mean, worst = BUDGETS[name, engine][metric]
    assert sum(errors) / len(errors) <= mean
    assert max(errors) <= worst
