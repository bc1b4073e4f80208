"""The score: errors, groups, refusals, and the shape of the JSON."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.phases import title
from gpu_mem_calculator.lab.backtest.predict import Prediction
from gpu_mem_calculator.lab.backtest.rows import METRICS, MeasuredRun, rows_from
from gpu_mem_calculator.lab.backtest.score import (
    BacktestReport,
    Comparison,
    as_data,
    backtest,
    summary,
)
from gpu_mem_calculator.report.backtest import text_score
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import measured_runs

from .conftest import measured_row

ROWS = rows_from(
    [
        measured_row("a", "x", measured={"allocated_bytes": 100, "fits": True}),
        measured_row("b", "x", measured={"allocated_bytes": 200, "graph_bytes": 0, "fits": True}),
        measured_row(
            "c",
            "y",
            measured={"allocated_bytes": 400, "reserved_bytes": 1},
            phases={"s0.opt": {"peak_bytes": 50}, "model": {"peak_bytes": 7}},
        ),
        measured_row("d", "y"),
        measured_row("e", "z", measured={"context_bytes": 1}),
        measured_row("f", "z", measured={}, failed="out of memory after model\nand more"),
    ]
)
FOUND = {
    "a": Prediction(allocated=101, fits=True),
    "b": Prediction(allocated=194, graph=5, fits=False),
    "c": Prediction(allocated=400, phases={"s0.opt": 60}),
}


def rung(row: MeasuredRun) -> Prediction:
    """Predictions of the rows above; what is not there is refused."""
    if row.id not in FOUND:
        raise InputError(["one thing is wrong", "and another"])
    return FOUND[row.id]


@pytest.fixture
def report() -> BacktestReport:
    """The rows above, scored."""
    return backtest(ROWS, rung)


def test_summaries_of_a_metric(report: BacktestReport) -> None:
    """Errors +1, -3 and 0 %: mean, median, worst, bias and one dangerous underestimate."""
    found = report.summary("allocated")
    assert found.n == 3
    assert found.mean_abs_pct == pytest.approx(4 / 3)
    assert (found.median_abs_pct, found.worst_abs_pct) == (1, 3)
    assert found.bias_pct == pytest.approx(-2 / 3)
    assert found.under_by_more_than_2_pct == 1


def test_two_percent_under_is_not_yet_dangerous() -> None:
    """Only more than 2 % counts, and only below."""
    assert summary([-2.0, -2.001, 9.0]).under_by_more_than_2_pct == 1


def test_groups_are_summed_up_by_themselves(report: BacktestReport) -> None:
    """Only groups that have rows are listed."""
    groups = as_data(report)["metrics"]["allocated"]["groups"]
    assert {name: group["n"] for name, group in groups.items()} == {"x": 2, "y": 1}


def test_every_metric_is_there(report: BacktestReport) -> None:
    """One without rows has n 0 and nulls."""
    metrics = as_data(report)["metrics"]
    assert list(metrics) == list(METRICS)
    assert metrics["needs"] == {
        "overall": {
            "n": 0,
            "mean_abs_pct": None,
            "median_abs_pct": None,
            "worst_abs_pct": None,
            "bias_pct": None,
            "under_by_more_than_2_pct": None,
        },
        "groups": {},
    }


def test_verdicts_are_right_or_wrong(report: BacktestReport) -> None:
    """`fits` has a share of right answers instead of an error."""
    fits = as_data(report)["metrics"]["fits"]
    assert fits == {
        "overall": {"n": 2, "right_pct": 50.0},
        "groups": {"x": {"n": 2, "right_pct": 50.0}},
    }
    assert as_data(backtest([], rung))["metrics"]["fits"]["overall"] == {"n": 0, "right_pct": None}


def test_rows_have_predicted_measured_and_error(report: BacktestReport) -> None:
    """Only what is both predicted and measured is in a row."""
    rows = as_data(report)["rows"]
    assert rows[1]["allocated"] == {"predicted": 194, "measured": 200, "error_pct": -3.0}
    assert rows[1]["fits"] == {"predicted": False, "measured": True, "right": False}
    assert "reserved" not in rows[2]
    assert report.unpredicted() == {"reserved": 1}


def test_a_measured_zero_has_no_error_unless_zero_was_predicted(report: BacktestReport) -> None:
    """A measured 0 has no error in percent, and is not averaged."""
    assert as_data(report)["rows"][1]["graph"]["error_pct"] is None
    assert report.summary("graph").n == 0
    assert Comparison(0, 0).error_pct == 0


def test_refused_rows_have_one_sentence(report: BacktestReport) -> None:
    """Every problem of a row, joined; a row without figures says so."""
    refused = {one["id"]: one["why"] for one in as_data(report)["refused"]}
    assert refused["d"] == "one thing is wrong; and another"
    assert "no figure to compare with" in refused["e"]
    assert refused["f"] == "the measured run did not end: out of memory after model"


def test_phases_are_added_when_asked_for(report: BacktestReport) -> None:
    """Each phase that is predicted, with its error."""
    assert "phases" not in as_data(report)["rows"][2]
    phases = as_data(report, phases=True)["rows"][2]["phases"]
    assert phases == {"s0.opt": {"predicted": 60, "measured": 50, "error_pct": 20.0}}
    assert report.phase_errors(title) == {"first step: optimizer": [("c", 20.0)]}


def test_progress_is_told_before_each_row() -> None:
    """Done, all, and the row that is next."""
    told: list[Any] = []
    backtest(ROWS[:2], rung, progress=lambda *args: told.append(args))
    assert told == [(0, 2, "a"), (1, 2, "b")]


def test_processes_give_the_same_as_one() -> None:
    """The order of the rows is preserved."""
    told: list[str] = []
    rows = rows_from(measured_runs()[:3])
    many = backtest(rows, jobs=2, progress=lambda done, total, name: told.append(name))
    assert many == backtest(rows)
    assert told == [row.id for row in rows]


@pytest.mark.proof
def test_the_measured_runs_score_as_published() -> None:
    """All 51 runs within 0.06 % on average, 4 of inference among them."""
    report = backtest(rows_from(measured_runs()))
    found = report.summary("allocated")
    assert found.n == 51
    assert found.mean_abs_pct is not None
    assert found.mean_abs_pct < 0.06
    assert not report.refused


@pytest.mark.parametrize(
    ("names", "shown"), [("abc", "a, b, c"), ("abcd", "a, b, c and 1 more"), ("a", "a")]
)
def test_three_rows_of_a_reason_are_named(names: str, shown: str) -> None:
    """Others are counted."""

    def refuse(row: MeasuredRun) -> Prediction:
        raise InputError([f"no {row.group}"])

    rows = rows_from([measured_row(name, "x", measured={"allocated_bytes": 1}) for name in names])
    text = plain(text_score(backtest(rows, refuse), "runs.jsonl"))
    assert text.splitlines()[-1].strip() == shown
