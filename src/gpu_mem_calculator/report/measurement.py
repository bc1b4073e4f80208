"""The report of a measurement: figures, phases as bars, and the comparison with the estimate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..estimates.calculator import Estimate, full_estimate
from ..lab.backtest.predict import by_estimate
from ..lab.backtest.rows import METRICS, rows_from
from ..lab.measure.cases import CaseResult
from ..lab.measure.probe import in_step
from ..ledger.units import GIB
from ..runfile.text.errors import InputError
from ..tools.translation.arguments import tables
from .backtest import TITLES
from .headline import headline
from .lines import (
    BAD,
    BOLD,
    DIM,
    GOOD,
    WARN,
    WIDTH,
    Line,
    bar,
    columns,
    command,
    gib,
    line,
    wrap_lines,
)

Row = Mapping[str, Any]
NAME, FIGURE = 24, 9
ROWS = 24  # with more phases, only those of the first and the last step are shown
BUSY = 1.5 * GIB  # a larger CUDA context means that other processes use the card
FIGURES: Mapping[str, str] = tables(__file__)
OTHERS: Mapping[str, Callable[[Any], str]] = {
    "host_bytes": lambda size: f"host RAM {gib(size, 2)} GiB",
    "step_seconds": lambda seconds: f"{seconds:.3f} s a step",
    "average_bytes": lambda size: f"{gib(size, 2)} GiB on average in the last",
    "utilization_pct": lambda share: f"GPU busy {share:.0f} %",
}
EACH_RANK = ("allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes")
COMPARED = ("allocated", "startup", "reserved", "needs", "device", "host")  # of rows.METRICS
KINDS = (("forward", "fwd"), ("backward", "bwd"), ("optimizer", "opt"))  # how phases end


def measurement_report(result: CaseResult, append: str | None) -> Iterator[Line]:
    """The lines of one measured case; `append` is the file to which its row was written, if any."""
    row = result.row
    assert row is not None
    estimate = ledger_estimate(row)
    if estimate is not None:
        yield from headline(estimate)
    if "function" in row:
        yield from _function(row)
    yield from _place(row)
    yield line()
    yield from _verdict(row)
    yield line()
    if row["phases"]:
        yield from _phases(row["phases"])
        yield line()
    if "failed" not in row and (rows := list(comparisons(row))):
        yield from _comparison(rows)
        yield line()
    yield from _remarks(row, result.log)
    yield from _next(row, append)


def ledger_estimate(row: Row) -> Estimate | None:
    """The estimate of a measured run by the ledger alone; None where it is not modelled."""
    if "function" in row:
        return None
    try:
        return full_estimate(row["config"], replay=False)
    except InputError:
        return None


def _function(row: Row) -> Iterator[Line]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in row["with"].items())
    yield line(row["function"], BOLD)
    if arguments:
        yield from wrap_lines("with ", arguments)


def _place(row: Row) -> Iterator[Line]:
    environment = row["environment"]
    words = [str(environment.get("gpu", "no card reached")), f"rank {row['rank']}"]
    words.append(f"process group: {environment.get('process_group', 'none')}")
    if "cap_bytes" in environment:
        words.append(f"torch capped at {gib(environment['cap_bytes'], 2)} GiB")
    if "alloc_conf" in environment:
        words.append(str(environment["alloc_conf"]))
    yield from wrap_lines("measured on ", ", ".join(words))


def _verdict(row: Row) -> Iterator[Line]:
    """The measured figures, or the error of the run."""
    if "failed" in row:
        yield from wrap_lines("failed: ", row["failed"], BAD)
        return
    measured = row["measured"]
    yield line(f"the run took {gib(measured['allocated_bytes'], 2)} GiB at its highest", GOOD)
    figures = [
        f"{name} {gib(measured[key], 2)}" for key, name in FIGURES.items() if key in measured
    ]
    yield from wrap_lines("", "   ".join(figures) + " GiB")
    if "survives_in_bytes" in measured:
        text = f"fails in {gib(measured['fails_in_bytes'], 2)} GiB, so it needs more than that"
        yield from wrap_lines("", text, DIM)
    yield from _tries(row.get("tries", ()))
    others = [says(measured[key]) for key, says in OTHERS.items() if key in measured]
    if others:
        yield from wrap_lines("", ", ".join(others), DIM)


def _tries(tries: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """What the runs under caps did: the only one, or how many died and where."""
    if not tries:
        return
    if len(tries) == 1 and tries[0]["survived"]:
        (one,) = tries
        text = f"survived in {gib(one['cap_bytes'], 2)} GiB; torch freed its cache "
        yield from wrap_lines("", text + f"{one['retries']} times to stay within it", DIM)
        return
    died = Counter(one["phase"] or "a phase unknown" for one in tries if not one["survived"])
    where = "".join(f", {count} in {phase}" for phase, count in died.items())
    yield from wrap_lines("", f"{len(tries)} tries, {died.total()} died{where}", DIM)


def _phases(phases: Mapping[str, Mapping[str, int]]) -> Iterator[Line]:
    """A bar for the peak of each phase, the highest marked."""
    shown = list(phases.items())
    if len(shown) > ROWS:
        steps = [name.partition(".")[0] for name, _ in shown if in_step(name)]
        ends = {steps[0], steps[-1]} if steps else set()
        shown = [(n, p) for n, p in shown if not in_step(n) or n.partition(".")[0] in ends]
    top = max(phase["peak_bytes"] for phase in phases.values())
    yield [("phases".ljust(2 + NAME + FIGURE - 3), BOLD), ("GiB", DIM)]
    marked = False
    for name, phase in shown:
        peak = phase["peak_bytes"]
        highest = peak == top and not marked
        marked = marked or highest
        style = BOLD * highest
        width = WIDTH - 2 - NAME - FIGURE - 1
        yield [
            (("► " if highest else "  ") + name[:NAME].ljust(NAME), style),
            (gib(peak, 2).rjust(FIGURE) + " ", style),
            (bar(peak, top, width), "green" if in_step(name) else "blue"),
        ]
    if len(shown) < len(phases):
        yield line(f"  ({len(phases) - len(shown)} phases of the steps between left out)", DIM)


def _comparison(rows: Sequence[tuple[str, int, int]]) -> Iterator[Line]:
    """A table of predicted and measured figures."""
    yield line("compared with the estimate", BOLD)
    cells = [
        [name, gib(predicted, 2), gib(measured, 2), percent(predicted, measured)]
        for name, predicted, measured in rows
    ]
    yield from columns(("GiB", "estimate", "measured", "error"), cells, {1, 2, 3})


def comparisons(row: Row) -> Iterator[tuple[str, int, int]]:
    """(name, predicted, measured) in bytes for the measured rank: of each metric, and of each kind
    of phase after the first step. Empty where the run is not modelled.
    """
    try:
        (read,) = rows_from([row])
        prediction = by_estimate(read)
    except InputError:
        return
    for metric in COMPARED:
        predicted, measured = getattr(prediction, metric), read.measured.get(METRICS[metric])
        if predicted is not None and measured is not None:
            yield TITLES[metric], predicted, measured
    for name, ending in KINDS:
        steps = (n for n in prediction.phases if in_step(n) and not n.startswith("s0."))
        later = [n for n in steps if n.endswith(f".{ending}")]
        if later:
            yield (
                name,
                max(prediction.phases[n] for n in later),
                max(read.phases[n] for n in later),
            )


def percent(predicted: int, measured: int) -> str:
    """The error of a prediction in percent, with its sign."""
    error = 100 * (predicted / measured - 1) if measured else math.inf
    return f"{error:+.2f} %"


def _remarks(row: Row, log: str) -> Iterator[Line]:
    measured = row["measured"]
    context = measured.get("context_bytes", 0)
    if context > BUSY:
        used = f"{gib(context, 2)} GiB of the card were in use before this run"
        yield from wrap_lines("note: ", f"{used}; nvidia-smi's figure counts them", WARN)
    if "failed" not in row and "reserved_bytes" not in measured:
        text = (
            "torch freed its cache to stay within what it may take, so what it reserved says "
            "nothing about a roomy card and is left out"
        )
        yield from wrap_lines("note: ", text, WARN)
    if log and ("failed" not in row or not row["failed"].startswith("out of memory")):
        yield line("what it printed last:", BOLD)
        yield from (line(f"  {text}") for text in log.strip().splitlines()[-12:])


def _next(row: Row, append: str | None) -> Iterator[Line]:
    """Where the row was written, and how to score it."""
    if append is None:
        yield from wrap_lines("keep: ", "add --append runs.jsonl, a file that backtest reads", DIM)
        return
    yield from wrap_lines("kept: ", f"{row['id']} in {append}", DIM)
    if "failed" not in row:
        yield from command("score: ", ["gpu-mem-calc", "backtest", append])


def case_line(result: CaseResult) -> Line:
    """One case on one line: its figures, or why it was refused or failed."""
    name = result.case.id.ljust(28)
    if result.refused:
        return [(name, ""), (f" refused: {'; '.join(result.refused)}", WARN)]
    if result.failed:
        return [(name, ""), (f" failed: {result.failed}", BAD)]
    assert result.row is not None
    measured = result.row["measured"]
    text = f" {gib(measured['allocated_bytes'], 2):>8}"
    reserved = measured.get("reserved_bytes")
    text += " GiB allocated" if reserved is None else f" of {gib(reserved, 2):>8} GiB reserved"
    if "survives_in_bytes" in measured:
        text += f", survives in {gib(measured['survives_in_bytes'], 2)}"
    for _, predicted, measured_bytes in comparisons(result.row):
        text += f"  est. {percent(predicted, measured_bytes)}"
        break
    return [(name, ""), (text, GOOD), (f"  {result.seconds:.0f} s", DIM)]


def ranks_report(rows: Sequence[Row], append: str | None) -> Iterator[Line]:
    """A table of the measured ranks of a job."""
    estimate = ledger_estimate(rows[0])
    if estimate is not None:
        yield from headline(estimate)
        yield line()
    table = []
    for row in rows:
        measured = row["measured"]
        sizes = [gib(measured[key], 2) if key in measured else "-" for key in EACH_RANK]
        errors = [percent(*figures) for _, *figures in comparisons(row)]
        table.append([f"rank {row['rank']}", *sizes, *(errors[:1] or [""])])
    head = ("GiB", "allocated", "reserved", "nvidia-smi", "host RAM", "estimate")
    yield from columns(head, table, {1, 2, 3, 4, 5})
    yield line()
    yield from _next({"id": f"{len(rows)} ranks"}, append)
