"""The score: each prediction beside its measurement, and what that makes by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import mean, median
from typing import Any

from msgspec import Struct

from ..core.errors import InputError
from .predict import RUNGS, Prediction, Rung, ready
from .rows import METRICS, MeasuredRun

DANGEROUS_PCT = -2.0  # an estimate further below than this promises a run that may die
NOTHING_MEASURED = "measured has no figure to compare with; add one, such as allocated_bytes"

Progress = Callable[[int, int, str], None]  # done, all, the row that is next


class Comparison(Struct, frozen=True):
    """One figure beside what was measured; `error_pct` is None where 0 was measured."""

    predicted: int
    measured: int

    @property
    def error_pct(self) -> float | None:
        """(predicted - measured) / measured, in percent."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else None
        return 100 * (self.predicted - self.measured) / self.measured


class RowScore(Struct, frozen=True, kw_only=True):
    """One row: its metrics, its phases, and the metrics that were measured but not predicted."""

    id: str
    group: str
    metrics: dict[str, Comparison]
    phases: dict[str, Comparison]
    unpredicted: tuple[str, ...]


class Refusal(Struct, frozen=True):
    """A row that the rung cannot predict, and why."""

    id: str
    why: str


class Summary(Struct, frozen=True, kw_only=True):
    """What the errors of some rows make."""

    n: int
    mean_abs_pct: float | None = None
    median_abs_pct: float | None = None
    worst_abs_pct: float | None = None
    bias_pct: float | None = None
    under_by_more_than_2_pct: int | None = None


class BacktestReport(Struct, frozen=True, kw_only=True):
    """Every row's comparison; summaries are made of them."""

    rung: str
    rows: tuple[RowScore, ...]
    refused: tuple[Refusal, ...]

    @property
    def groups(self) -> list[str]:
        """The groups, in the order of the rows."""
        return list(dict.fromkeys(row.group for row in self.rows))

    def errors(self, metric: str, group: str | None = None) -> dict[str, float]:
        """Each row's error in percent, by the row's id."""
        return {
            row.id: error
            for row in self.rows
            if (group is None or row.group == group) and metric in row.metrics
            and (error := row.metrics[metric].error_pct) is not None
        }  # fmt: skip

    def summary(self, metric: str, group: str | None = None) -> Summary:
        """The summary of a metric, of all rows or of a group's."""
        return summary(list(self.errors(metric, group).values()))

    def phase_errors(self, title: Callable[[str], str]) -> dict[str, list[tuple[str, float]]]:
        """(row, error) of every phase, put together by what `title` calls a phase."""
        found: dict[str, list[tuple[str, float]]] = {}
        for row in self.rows:
            for name, one in row.phases.items():
                if one.error_pct is not None:
                    found.setdefault(title(name), []).append((row.id, one.error_pct))
        return found

    def unpredicted(self) -> dict[str, int]:
        """How many rows have a measured figure that the rung does not predict, by metric."""
        counts = {m: sum(m in row.unpredicted for row in self.rows) for m in METRICS}
        return {metric: count for metric, count in counts.items() if count}


def summary(errors: Sequence[float]) -> Summary:
    """Mean, median and worst of the size of errors, their bias, and the dangerous ones."""
    if not errors:
        return Summary(n=0)
    sizes = [abs(e) for e in errors]
    return Summary(
        n=len(errors), mean_abs_pct=mean(sizes), median_abs_pct=median(sizes),
        worst_abs_pct=max(sizes), bias_pct=mean(errors),
        under_by_more_than_2_pct=sum(e < DANGEROUS_PCT for e in errors),
    )  # fmt: skip


def backtest(
    rows: Sequence[MeasuredRun], rung: str | Rung = "estimate", *, jobs: int = 1,
    progress: Progress | None = None,
) -> BacktestReport:  # fmt: skip
    """Predict every row and compare. `rung` is a name of `RUNGS`, or a function like theirs."""
    if isinstance(rung, str):
        ready(rung)
    scored: list[RowScore] = []
    refused: list[Refusal] = []
    for row, found in zip(rows, _predictions(rows, rung, jobs, progress), strict=True):
        if isinstance(found, Prediction):
            scored.append(_scored(row, found))
        else:
            refused.append(Refusal(row.id, found))
    name = rung if isinstance(rung, str) else getattr(rung, "__name__", "own")
    return BacktestReport(rung=name, rows=tuple(scored), refused=tuple(refused))


def _predictions(
    rows: Sequence[MeasuredRun], rung: str | Rung, jobs: int, progress: Progress | None
) -> Iterator[Prediction | str]:
    """Each row's prediction, or the sentence that refuses it, in order."""
    if jobs > 1 and isinstance(rung, str):
        yield from _in_processes(rows, rung, jobs, progress)
        return
    for done, row in enumerate(rows):
        if progress is not None:
            progress(done, len(rows), row.id)
        yield predicted(row, rung)


def _in_processes(
    rows: Sequence[MeasuredRun], rung: str, jobs: int, progress: Progress | None
) -> Iterator[Prediction | str]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        answers: Iterable[Prediction | str] = pool.map(predicted, rows, [rung] * len(rows))
        for done, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            if progress is not None:
                progress(done, len(rows), row.id)
            yield answer


def predicted(row: MeasuredRun, rung: str | Rung) -> Prediction | str:
    """A row's prediction, or the sentence that refuses it."""
    if not any(key in row.measured for key in METRICS.values()):
        reason = row.failed.partition("\n")[0]
        return f"the measured run did not end: {reason}" if reason else NOTHING_MEASURED
    function = RUNGS[rung] if isinstance(rung, str) else rung
    try:
        return function(row)
    except InputError as error:
        return "; ".join(error.problems)


def _scored(row: MeasuredRun, found: Prediction) -> RowScore:
    measured = {m: row.measured[key] for m, key in METRICS.items() if key in row.measured}
    values = {m: getattr(found, m) for m in measured}
    return RowScore(
        id=row.id, group=row.group,
        metrics={m: Comparison(v, measured[m]) for m, v in values.items() if v is not None},
        phases={n: Comparison(found.phases[n], peak) for n, peak in row.phases.items()
                if n in found.phases},
        unpredicted=tuple(m for m, v in values.items() if v is None),
    )  # fmt: skip


def as_data(report: BacktestReport, *, phases: bool = False) -> dict[str, Any]:
    """The report as plain data: every metric, every row, every refusal."""
    return {
        "metrics": {metric: _metric(report, metric) for metric in METRICS},
        "rows": [_row_data(row, phases) for row in report.rows],
        "refused": [{"id": one.id, "why": one.why} for one in report.refused],
    }


def _metric(report: BacktestReport, metric: str) -> dict[str, Any]:
    make = right if metric == "fits" else _figures
    groups = {group: make(report, metric, group) for group in report.groups}
    return {
        "overall": make(report, metric, None),
        "groups": {group: made for group, made in groups.items() if made["n"]},
    }


def _figures(report: BacktestReport, metric: str, group: str | None) -> dict[str, Any]:
    found = report.summary(metric, group)
    return {name: getattr(found, name) for name in found.__struct_fields__}


def right(report: BacktestReport, metric: str = "fits", group: str | None = None) -> dict[str, Any]:
    """Of verdicts, how many are right."""
    found = [row.metrics[metric] for row in report.rows
             if (group is None or row.group == group) and metric in row.metrics]  # fmt: skip
    good = sum(one.predicted == one.measured for one in found)
    return {"n": len(found), "right_pct": 100 * good / len(found) if found else None}


def _row_data(row: RowScore, phases: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"id": row.id, "group": row.group}
    for metric, one in row.metrics.items():
        if metric == "fits":
            data[metric] = {"predicted": one.predicted, "measured": one.measured,
                            "right": one.predicted == one.measured}  # fmt: skip
        else:
            data[metric] = _compared(one)
    if phases:
        data["phases"] = {name: _compared(one) for name, one in row.phases.items()}
    return data


def _compared(one: Comparison) -> dict[str, Any]:
    return {"predicted": one.predicted, "measured": one.measured, "error_pct": one.error_pct}
