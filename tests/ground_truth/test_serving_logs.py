"""Estimates of servers against start-up logs that people published, with an error budget each.

A budget is what is reached today, rounded up: a change that makes an engine worse fails here. Logs
round to 0.01 GiB and leave options out, so small figures are off by more than large ones.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.advice.diagnosis.part_rows import part_rows
from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.lab.backtest.score import BacktestReport, backtest

HERE = Path(__file__).parent

# (file, engine): mean and worst of the absolute error of each figure, in percent
BUDGETS: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("serving", "vllm"): {
        "weights": (0.03, 0.1),
        "activation": (9, 72),
        "non_torch": (25, 93),
        "kv_pool": (0.8, 3.2),
        "kv_tokens": (2.6, 2.6),
    },
    ("serving", "sglang"): {"kv_pool": (0.95, 2.4), "kv_tokens": (0.13, 1.7)},
    ("serving_vllm", "vllm"): {
        "weights": (0.16, 2.0),
        "activation": (0.5, 16.1),
        "non_torch": (4.2, 46),
        "graph": (8.4, 58),
        "kv_pool": (0.11, 1.0),
        "kv_tokens": (0.11, 1.0),
    },
    ("serving_sglang", "sglang"): {
        "weights": (0.27, 1.5),
        "graph": (12, 30),
        "kv_pool": (0.41, 2.4),
        "kv_tokens": (0.09, 1),
    },
    ("serving_tensorrt_llm", "tensorrt_llm"): {
        "weights": (0.29, 0.9),
        "activation": (2.3, 14),
        "kv_pool": (2.4, 5.0),
        "kv_tokens": (2.4, 5.0),
    },
    ("serving_llamacpp", "llamacpp"): {
        "weights": (0.06, 1),
        "activation": (0.02, 0.3),
        "kv_pool": (0.01, 0.01),
        "kv_tokens": (0, 0),
    },
    ("serving_unseen", "vllm"): {
        "weights": (0.22, 2.5),
        "activation": (46, 440),
        "non_torch": (37, 93),
        "graph": (39, 95),
        "kv_pool": (5.3, 35),
        "kv_tokens": (11.2, 66),
    },
    ("serving_unseen", "sglang"): {
        "weights": (2.3, 11.5),
        "kv_pool": (3.6, 22.6),
        "kv_tokens": (3.5, 22.6),
    },
    ("serving_releases", "vllm"): {
        "weights": (0.07, 0.6),
        "activation": (6.8, 15),
        "non_torch": (33, 86),
        "graph": (34, 128),
        "kv_pool": (1.4, 6.5),
        "kv_tokens": (1.6, 6.7),
    },
    ("serving_releases", "sglang"): {
        "weights": (0.06, 0.2),
        "kv_pool": (0.02, 0.05),
        "kv_tokens": (0.03, 0.05),
    },
    ("serving_releases_last", "vllm"): {
        "weights": (0.06, 0.7),
        "activation": (15.1, 34),
        "non_torch": (54, 151),
        "graph": (44, 89),
        "kv_pool": (1.6, 9.8),
        "kv_tokens": (1.6, 9.8),
    },
    ("serving_releases_last", "sglang"): {
        "weights": (0.2, 0.4),
        "kv_pool": (0.14, 0.3),
        "kv_tokens": (0.23, 0.5),
    },
    ("serving_tgi", "tgi"): {"kv_pool": (2.9, 7.9), "kv_tokens": (2.9, 7.9)},
}
NOT_EXPRESSED = {"vllm-0.8.2-llama3.2-3b-q8_0-4070": "a type of GGUF files"}  # in vLLM
FILES = tuple(dict.fromkeys(name for name, _ in BUDGETS))
CASES = [(*key, metric) for key, budgets in BUDGETS.items() for metric in budgets]


@cache
def report(name: str) -> BacktestReport:
    """One file against the estimate."""
    return backtest(read_rows(HERE / f"{name}.jsonl"))


@pytest.mark.parametrize("name", FILES)
def test_every_log_is_expressed_and_every_verdict_right(name: str) -> None:
    """Nothing else is refused, and a server that did not start is told so."""
    found = report(name)
    assert all(NOT_EXPRESSED.get(one.id, "-") in one.why for one in found.refused)
    assert all(one.id in NOT_EXPRESSED for one in found.refused)
    verdicts = [row.metrics["fits"] for row in found.rows if "fits" in row.metrics]
    assert all(one.predicted == one.measured for one in verdicts)


@pytest.mark.parametrize(("name", "engine", "metric"), CASES)
def test_an_engine_stays_within_its_budget(name: str, engine: str, metric: str) -> None:
    """Mean and worst of one figure."""
    errors = [abs(error) for error in report(name).errors(metric, engine).values()]
    mean, worst = BUDGETS[name, engine][metric]
    assert sum(errors) / len(errors) <= mean
    assert max(errors) <= worst


def test_many_releases_are_compared() -> None:
    """Two halves that alternate by release: 55 logs of 30 releases, none twice."""
    halves = [read_rows(HERE / f"serving_releases{end}.jsonl") for end in ("", "_last")]
    rows = [row for half in halves for row in half]
    versions = [(row.group, row.config["inference"]["engine_version"]) for row in rows]
    assert (len(rows), len(set(versions)), len({row.id for row in rows})) == (55, 30, 55)
    assert abs(len(halves[0]) - len(halves[1])) <= 1


@pytest.mark.parametrize(
    ("row", "engine"),
    [(row, engine) for row in part_rows("server") for engine in row.get("within", {})],
    ids=lambda one: one if isinstance(one, str) else one["of"],
)
def test_a_part_is_evidence_beyond_the_error_of_19_of_20_logs(
    row: dict[str, Any], engine: str
) -> None:
    """Rounded up; of fewer than 20 logs the worst."""
    metric = {"pool": "kv_pool"}.get(row["of"], row["of"])
    errors = sorted(
        abs(error) for name in FILES for error in report(name).errors(metric, engine).values()
    )
    within = errors[ceil(0.95 * len(errors)) - 1]
    assert within <= row["within"][engine] <= within * 1.25 + 0.1
