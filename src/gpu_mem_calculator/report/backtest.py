"""The score as text: each metric by group, the worst rows, the refused rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..lab.backtest.phases import SERVED, WORDS, title
from ..lab.backtest.rows import METRICS
from ..lab.backtest.score import BacktestReport, summary, verdict_score
from ..tools.translation.arguments import tables
from .lines import BAD, BOLD, DIM, WARN, Line, gib, line, wrap_lines
from .progress_bar import shorten

_TABLES = tables(__file__)
TITLES, RUNGS = _TABLES["titles"], _TABLES["rungs"]
UNITS = _TABLES["units"]  # the others are bytes, shown in GiB
NAME, RUN, NUM_WORST = 18, 21, 5
HEAD = f"{'mean':>6}{'median':>7}{'worst':>7}{'bias':>7}{'danger':>7}  worst run"
Errors = Sequence[tuple[str, float]]  # row, error in percent


def text_score(report: BacktestReport, where: str, *, phases: bool = False) -> Iterator[Line]:
    """The lines of the report; `where` names the file, `phases` adds the table of phases."""
    yield from _headline(report, where)
    for metric, name in TITLES.items():
        if report.summary(metric).n:
            yield line()
            groups = [(g, list(report.errors(metric, g).items())) for g in report.groups]
            yield from _table(name, groups, list(report.errors(metric).items()))
    yield from _verdicts(report)
    if phases:
        yield from _phases(report)
    yield from _worst(report)
    yield from _notes(report)
    yield from _refused(report)


def _headline(report: BacktestReport, where: str) -> Iterator[Line]:
    rung = RUNGS.get(report.rung, report.rung)
    count = len(report.rows)
    text = f"{count} measured run{'' if count == 1 else 's'} against {rung}"
    if report.refused:
        text += f", {len(report.refused)} refused"
    yield from wrap_lines("", f"{text}: {where}", BOLD)
    if report.rows:
        minus = "A minus says too little; more than 2 % too little is dangerous."
        yield from wrap_lines("", f"Error in %: (predicted - measured) / measured. {minus}", DIM)


def _table(
    name: str, groups: Iterable[tuple[str, Errors]], whole: Errors, counted: str = "runs"
) -> Iterator[Line]:
    """A heading, a row for each group, and a row for all unless there is one group."""
    yield [(name.ljust(NAME), BOLD), (f"{counted:>5}{HEAD}", DIM)]
    filled = [(group, errors) for group, errors in groups if errors]
    for group, errors in filled:
        yield _figures(f"  {group}", errors)
    if len(filled) != 1:
        yield _figures("  all", whole, BOLD)


def _figures(name: str, errors: Errors, style: str = "") -> Line:
    score = summary([error for _, error in errors])
    run, worst = max(errors, key=lambda one: abs(one[1]))
    mean, median = (
        _signed(v or 0.0).lstrip("+") for v in (score.mean_abs_pct, score.median_abs_pct)
    )
    text = (
        f"{shorten(name, NAME - 1):<{NAME}}{score.n:>5}{mean:>6}{median:>7}{_signed(worst):>7}"
        f"{_signed(score.bias_pct or 0.0):>7}"
    )
    danger = score.under_by_more_than_2_pct or 0
    return [
        (text, style),
        (f"{danger or '-':>7}", BAD if danger else style),
        (f"  {shorten(run, RUN)}", DIM),
    ]


def _signed(error: float) -> str:
    """An error with its sign and two digits; no sign for 0.00, fewer digits for large errors."""
    if abs(error) >= 1000:
        return f"{error:+.0e}"
    text = f"{error:+.2f}" if abs(error) < 100 else f"{error:+.0f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def _verdicts(report: BacktestReport) -> Iterator[Line]:
    score = verdict_score(report)
    if score["n"]:
        yield line()
        right = round(score["n"] * score["right_pct"] / 100)
        yield line(f"fits or not: {right} of {score['n']} right", BOLD)


def _phases(report: BacktestReport) -> Iterator[Line]:
    """The table of errors by kind of phase, in the order of a run."""
    errors_by_title = report.phase_errors(title)
    yield line()
    if not errors_by_title:
        yield from wrap_lines("", "No row has phases that this level predicts.", DIM)
        return
    words = [*WORDS.values(), *SERVED]

    def order(name: str) -> tuple[int, int]:
        step, _, kind = name.partition(": ")
        rank = ("start-up", "first step", "later steps", "inference").index(step)
        return rank, words.index(kind) if rank else 0

    groups = [
        (_short_title(name), errors_by_title[name]) for name in sorted(errors_by_title, key=order)
    ]
    whole = [one for errors in errors_by_title.values() for one in errors]
    yield from _table("phases", groups, whole, "n")
    later = "in later ones, which find the optimizer's state there"
    yield from wrap_lines("", f"Peaks of phases, in the first step and {later}.", DIM)


def _short_title(name: str) -> str:
    """The title of a kind of phase, short enough for the table."""
    text = name.replace("forward and backward", "fwd, bwd").replace("gradient sync", "sync")
    step, _, kind = text.partition(": ")
    short = {"first step": "first", "later steps": "later", "start-up": "start", "inference": ""}
    return f"{short[step]} {kind}".lstrip()


def _worst(report: BacktestReport) -> Iterator[Line]:
    """The rows with the largest errors in the main metric."""
    metric = main_metric(report)
    if metric is None:
        return
    errors = report.errors(metric)
    names = sorted(errors, key=lambda name: -abs(errors[name]))[:NUM_WORST]
    rows = {row.id: row for row in report.rows}
    head = f"furthest off: {TITLES[metric]}, {UNITS.get(metric, 'GiB')}"
    yield line()
    yield [(head.ljust(44), BOLD), (f"{'predicted':>11}{'measured':>11}{'error':>12}", DIM)]
    for name in names:
        one = rows[name].metrics[metric]
        show = (figure(metric, v) for v in (one.predicted, one.measured))
        left = shorten(f"  {name}", 43)
        style = WARN if abs(errors[name]) > 2 else ""
        yield [
            (f"{left:<44}" + "".join(f"{text:>11}" for text in show), ""),
            (f"{_signed(errors[name]):>10} %", style),
        ]


def figure(metric: str, value: float) -> str:
    """A figure of a metric in its unit."""
    if metric == "step":
        return f"{value:.4f}"
    return f"{value:,}" if metric in UNITS else gib(int(value), 3)


def main_metric(report: BacktestReport) -> str | None:
    """The first metric that has rows; None where none has."""
    return next((m for m in METRICS if m in TITLES and report.errors(m)), None)


def _notes(report: BacktestReport) -> Iterator[Line]:
    missing = report.unpredicted()
    if missing:
        rung = RUNGS.get(report.rung, report.rung)
        names = ", ".join(f"{TITLES.get(m, m)} ({n})" for m, n in missing.items())
        yield line()
        yield from wrap_lines("", f"Measured, but not predicted by {rung}: {names} rows.", DIM)
    for note in report.notes:
        yield from wrap_lines("", f"{note}.", DIM)


def _refused(report: BacktestReport) -> Iterator[Line]:
    """Why rows were refused: each reason once, with its rows."""
    reasons: dict[str, list[str]] = {}
    for one in report.refused:
        reasons.setdefault(one.why, []).append(one.id)
    if reasons:
        yield line()
        yield line("refused", BOLD)
    for why, names in sorted(reasons.items(), key=lambda one: -len(one[1])):
        yield from wrap_lines(f"{len(names):>4}  ", why)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield from wrap_lines("      ", ", ".join(names[:3]) + more, DIM)
