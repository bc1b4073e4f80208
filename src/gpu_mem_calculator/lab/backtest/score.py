"""The score: compares each prediction with its measurement, and summarises errors by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import mean, median
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from ...runfile.text.errors import InputError
from .predict import RUNGS, Prediction, Rung, check_rung
from .rows import METRICS, MeasuredRun, unknown_notes

DANGEROUS_PCT = -2.0  # a prediction further below lets users start runs that may fail
NOTHING_MEASURED = "measured has no figure to compare with; add one, such as allocated_bytes"

Progress = Callable[[int, int, str], None]  # rows done, all rows, the id of the next row


class Comparison(Struct, frozen=True):
    """A predicted and a measured figure; `error_pct` is None where 0 was measured."""

    predicted: float
    measured: float

    @property
    def error_pct(self) -> float | None:
        """(predicted - measured) / measured, in percent."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else None
        return 100 * (self.predicted - self.measured) / self.measured


class RowScore(Struct, frozen=True, kw_only=True):
    """The comparisons of one measured run.

    - metrics, phases: predicted and measured figures by name
    - unpredicted: metrics that were measured but are not predicted
    """

    id: str
    group: str
    metrics: dict[str, Comparison]
    phases: dict[str, Comparison]
    unpredicted: tuple[str, ...]


class Refusal(Struct, frozen=True):
    """A measured run that the rung cannot predict, and why, in a sentence."""

    id: str
    why: str


class Summary(Struct, frozen=True, kw_only=True):
    """Statistics of the errors of some rows, in percent; None where there are no rows."""

    n: int
    mean_abs_pct: float | None = None
    median_abs_pct: float | None = None
    worst_abs_pct: float | None = None
    bias_pct: float | None = None
    under_by_more_than_2_pct: int | None = None


class BacktestReport(Struct, frozen=True, kw_only=True):
    """The comparisons of all rows, and their summaries; `notes`: what is not compared."""

    rung: str
    rows: tuple[RowScore, ...]
    refused: tuple[Refusal, ...]
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[str]:
        """The groups, in the order of the rows."""
        return list(dict.fromkeys(row.group for row in self.rows))

    def errors(self, metric: str, group: str | None = None) -> dict[str, float]:
        """Each row's error in percent, by the row's id."""
        errors = {row.id: row.metrics[metric].error_pct for row in self.with_metric(metric, group)}
        return {name: error for name, error in errors.items() if error is not None}

    def with_metric(self, metric: str, group: str | None) -> list[RowScore]:
        """The rows that have a metric, of all groups or of one."""
        rows = [row for row in self.rows if metric in row.metrics]
        return [row for row in rows if group is None or row.group == group]

    def summary(self, metric: str, group: str | None = None) -> Summary:
        """The summary of a metric, of all rows or of a group's."""
        return summary(list(self.errors(metric, group).values()))

    def phase_errors(self, title: Callable[[str], str]) -> dict[str, list[tuple[str, float]]]:
        """(row id, error in percent) of every phase, grouped by the title that `title` gives it."""
        errors: dict[str, list[tuple[str, float]]] = {}
        for row in self.rows:
            for name, one in row.phases.items():
                if one.error_pct is not None:
                    errors.setdefault(title(name), []).append((row.id, one.error_pct))
        return errors

    def unpredicted(self) -> dict[str, int]:
        """The number of rows, by metric, whose measured figure the rung does not predict."""
        counts = {m: sum(m in row.unpredicted for row in self.rows) for m in METRICS}
        return {metric: count for metric, count in counts.items() if count}


def summary(errors: Sequence[float]) -> Summary:
    """Mean, median and worst absolute error, the bias, and the number of dangerous errors."""
    if not errors:
        return Summary(n=0)
    sizes = [abs(e) for e in errors]
    return Summary(
        n=len(errors),
        mean_abs_pct=mean(sizes),
        median_abs_pct=median(sizes),
        worst_abs_pct=max(sizes),
        bias_pct=mean(errors),
        under_by_more_than_2_pct=sum(e < DANGEROUS_PCT for e in errors),
    )


def backtest(
    rows: Sequence[MeasuredRun],
    rung: str | Rung = "estimate",
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> BacktestReport:
    """Predict every row and compare. `rung` is a name in `RUNGS`, or a function like those."""
    if isinstance(rung, str):
        check_rung(rung)
    scored: list[RowScore] = []
    refused: list[Refusal] = []
    for row, prediction in zip(rows, _predictions(rows, rung, jobs, progress), strict=True):
        if isinstance(prediction, Prediction):
            scored.append(_score_row(row, prediction))
        else:
            refused.append(Refusal(row.id, prediction))
    name = rung if isinstance(rung, str) else getattr(rung, "__name__", "own")
    return BacktestReport(
        rung=name, rows=tuple(scored), refused=tuple(refused), notes=tuple(unknown_notes(rows))
    )


def _predictions(
    rows: Sequence[MeasuredRun], rung: str | Rung, jobs: int, progress: Progress | None
) -> Iterator[Prediction | str]:
    """Each row's prediction in order, or the sentence that refuses it."""
    if jobs > 1 and isinstance(rung, str):
        yield from _parallel_predictions(rows, rung, jobs, progress)
        return
    for done, row in enumerate(rows):
        if progress is not None:
            progress(done, len(rows), row.id)
        yield predict_row(row, rung)


def _parallel_predictions(
    rows: Sequence[MeasuredRun], rung: str, jobs: int, progress: Progress | None
) -> Iterator[Prediction | str]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        answers: Iterable[Prediction | str] = pool.map(predict_row, rows, [rung] * len(rows))
        for done, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            if progress is not None:
                progress(done, len(rows), row.id)
            yield answer


def predict_row(row: MeasuredRun, rung: str | Rung) -> Prediction | str:
    """A row's prediction, or the sentence that refuses it."""
    if not any(key in row.measured for key in METRICS.values()):
        reason = row.failed.partition("\n")[0]
        return f"the measured run did not end: {reason}" if reason else NOTHING_MEASURED
    function = RUNGS[rung] if isinstance(rung, str) else rung
    try:
        return function(row)
    except InputError as error:
        return "; ".join(error.problems)


def _score_row(row: MeasuredRun, prediction: Prediction) -> RowScore:
    measured = {m: row.measured[key] for m, key in METRICS.items() if key in row.measured}
    values = {m: getattr(prediction, m) for m in measured}
    return RowScore(
        id=row.id,
        group=row.group,
        metrics={m: Comparison(v, measured[m]) for m, v in values.items() if v is not None},
        phases={
            n: Comparison(prediction.phases[n], peak)
            for n, peak in row.phases.items()
            if n in prediction.phases
        },
        unpredicted=tuple(m for m, v in values.items() if v is None),
    )


def as_data(report: BacktestReport, *, phases: bool = False) -> dict[str, Any]:
    """The report as plain data: every metric, every row, every refusal."""
    return {
        "metrics": {metric: _metric(report, metric) for metric in METRICS},
        "rows": [_row_data(row, phases) for row in report.rows],
        "refused": [{"id": one.id, "why": one.why} for one in report.refused],
        **({"notes": list(report.notes)} if report.notes else {}),
    }


def _metric(report: BacktestReport, metric: str) -> dict[str, Any]:
    summarize = verdict_score if metric == "fits" else _figures
    groups = {group: summarize(report, metric, group) for group in report.groups}
    return {
        "overall": summarize(report, metric, None),
        "groups": {group: figures for group, figures in groups.items() if figures["n"]},
    }


def _figures(report: BacktestReport, metric: str, group: str | None) -> dict[str, Any]:
    return asdict(report.summary(metric, group))


def verdict_score(
    report: BacktestReport, metric: str = "fits", group: str | None = None
) -> dict[str, Any]:
    """The number of verdicts, and the percentage of them that are right."""
    comparisons = [row.metrics[metric] for row in report.with_metric(metric, group)]
    right = sum(one.predicted == one.measured for one in comparisons)
    share = 100 * right / len(comparisons) if comparisons else None
    return {"n": len(comparisons), "right_pct": share}


def _row_data(row: RowScore, phases: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"id": row.id, "group": row.group}
    for metric, one in row.metrics.items():
        if metric == "fits":
            data[metric] = {**asdict(one), "right": one.predicted == one.measured}
        else:
            data[metric] = _comparison_data(one)
    if phases:
        data["phases"] = {name: _comparison_data(one) for name, one in row.phases.items()}
    return data


def _comparison_data(one: Comparison) -> dict[str, Any]:
    return {**asdict(one), "error_pct": one.error_pct}
