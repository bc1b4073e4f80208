"""The generated parts of the pages in accuracy/: a group's runs, and what is off and why."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import scores
from msgspec import Struct
from scores import FILES, GROUPS, METRICS

from gpu_mem_calculator.lab.backtest.score import RowScore, summary

CAUSES = Path(__file__).with_name("causes.toml")
LIMITS = {
    "phase": 3.0,
    "allocated": 0.3,
    "startup": 0.5,
    "reserved": 3.0,
    "needs": 1.0,
    "host": 15.0,
}
SHOWN = ("allocated", "reserved", "needs", "device")
EXACT = 0.5  # percent; a trace this close to the card has what the run does
NOT_EXPLAINED = "Not explained."
ORDER = (
    "Not explained in detail. The trace of the same run is right, so the cause is the order in "
    "which the estimate's stream allocates and frees tensors."
)
BOTH = "Not explained. The trace of the same run is off, too."
MIB, GIB = 2**20, 2**30


class Off(Struct, frozen=True):
    """A figure, or the peak of a phase, that is further off than its limit."""

    run: str
    what: str
    predicted: int
    measured: int
    why: str

    @property
    def cells(self) -> list[str]:
        """A row of the table, but for the reason."""
        error = 100 * (self.predicted / self.measured - 1) if self.measured else float("inf")
        apart = (self.predicted - self.measured) / MIB
        return [
            self.run,
            self.what,
            f"{self.measured / GIB:.3f}",
            f"{apart:+,.0f}",
            f"{error:+.1f} %",
        ]


@cache
def causes() -> list[dict[str, str]]:
    """What is known: patterns for the run and the figure, and the reason."""
    found: list[dict[str, str]] = tomllib.loads(CAUSES.read_text(encoding="utf-8"))["cause"]
    return found


def why(row: RowScore, what: str) -> str:
    """Why a figure is off: a cause that is known, else what the trace of the same run tells."""
    for cause in causes():
        here = cause.get("group", row.group) == row.group
        if here and re.fullmatch(cause["run"], row.id) and re.fullmatch(cause["what"], what):
            return cause["why"]
    traced = scores.traced().get(row.id, {}).get(what)
    if what in ("reserved", "needs") and traced is not None:
        return ORDER if abs(traced) <= EXACT else BOTH
    return NOT_EXPLAINED


def off(group: str) -> Iterator[Off]:
    """Every figure of a group that is further off than its limit, then every phase."""
    for _, row in scores.rows(group):
        for metric, limit in LIMITS.items():
            one = row.metrics.get(metric)
            if one is not None and (one.error_pct is None or abs(one.error_pct) > limit):
                yield Off(row.id, metric, one.predicted, one.measured, why(row, metric))
    for _, row in scores.rows(group):
        for name, one in row.phases.items():
            if one.error_pct is None or abs(one.error_pct) > LIMITS["phase"]:
                yield Off(
                    row.id, f"phase {name}", one.predicted, one.measured, why(row, f"phase {name}")
                )


def _table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


HEAD = ["run", "figure", "measured, GiB", "difference, MiB", "error", "cause"]


def _with_reasons(found: list[Off]) -> str:
    """A table, and under it each reason once."""
    reasons = {why: number for number, why in enumerate(dict.fromkeys(o.why for o in found), 1)}
    table = _table(HEAD, [[*one.cells, f"({reasons[one.why]})"] for one in found])
    return "\n".join([table, "", *(f"{number}. {why}" for why, number in reasons.items())])


def figures_off(group: str) -> str:
    """The figures that are off."""
    found = [one for one in off(group) if not one.what.startswith("phase")]
    return _with_reasons(found) if found else "None."


def phases_off(group: str) -> str:
    """The phases that are off."""
    found = [one for one in off(group) if one.what.startswith("phase")]
    number = sum(len(row.phases) for _, row in scores.rows(group))
    said = f"{len(found)} of {number}."
    return f"{said}\n\n{_with_reasons(found)}" if found else said


def by_file(group: str) -> str:
    """Mean and worst errors of a group in each file."""
    lines = []
    for name in FILES:
        found = {metric: scores.errors(metric, group, (name,)) for metric in METRICS}
        if found["allocated"]:
            lines.append(
                [
                    f"{name}.jsonl",
                    str(len(found["allocated"])),
                    *(_both(errors) for errors in found.values()),
                ]
            )
    return _table(["mean, worst", "runs", *METRICS.values()], lines)


def _both(errors: list[float]) -> str:
    if not errors:
        return "-"
    return f"{summary(errors).mean_abs_pct:.2f}, {max(errors, key=abs):+.2f} %"


def every_run(group: str) -> str:
    """Every run, furthest off first; errors in percent."""
    lines = []
    for name, row in sorted(scores.rows(group), key=lambda one: -_furthest(one[1])):
        trace = scores.traced().get(row.id, {})
        cells = [_error(scores.error(row, metric)) for metric in SHOWN]
        traces = [_error(trace.get(metric)) for metric in ("allocated", "reserved")]
        size = row.metrics["allocated"].measured / GIB if "allocated" in row.metrics else 0
        lines.append([row.id, name, f"{size:.3f}", *cells, *traces])
    head = [
        "run",
        "file",
        "allocated, GiB",
        *(METRICS[m] for m in SHOWN),
        "trace: allocated",
        "reserved",
    ]
    return _table(head, lines)


def _furthest(row: RowScore) -> float:
    return max((abs(scores.error(row, metric) or 0) for metric in SHOWN), default=0.0)


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:+.2f}"


def bodies(group: str) -> dict[str, str]:
    """What stands between the marks of a group's page."""
    return {
        "files": by_file(group),
        "figures": figures_off(group),
        "phases": phases_off(group),
        "runs": every_run(group),
    }


def unexplained() -> Iterator[str]:
    """Figures whose reason is not known, and causes that nothing needs any more."""
    every = [one for group in GROUPS for one in off(group)]
    for one in every:
        if one.why == NOT_EXPLAINED:
            yield f"not explained: {one.run} {one.what}"
    used = {one.why for one in every}
    for cause in causes():
        if cause["why"] not in used:
            yield f"causes.toml: nothing is off any more for {cause['run']} {cause['what']}"
