"""A diagnosis on one screen: what happened, how certain it is, the evidence, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..advice.diagnosis.diagnosis import CERTAIN, LIKELY, Cause, Diagnosis
from ..tools.logs.figure import Figure
from ..tools.logs.read import LogLine
from .lines import BAD, BOLD, DIM, WARN, Line, line, wrap_lines

STYLES = {CERTAIN: BAD, LIKELY: BAD}
MOST_READ = 6  # lines that were read are shown
SHOWN = 120  # characters of each
UNKNOWN = "cannot tell why it died: nothing in the text says it"


def diagnosis_lines(found: Diagnosis) -> Iterator[Line]:
    """The cause first; last the line that is made to be pasted."""
    yield from _cause_lines(found)
    if found.evidence:
        yield line()
        yield line("evidence", BOLD)
        for sentence in found.evidence:
            yield from wrap_lines("  ", sentence)
    if found.read:
        yield line()
        lines = (
            "1 line that says" if len(found.read) == 1 else f"{len(found.read):,} lines that say"
        )
        yield line(f"read: {lines} something of memory", BOLD)
        for one in found.read[:MOST_READ]:
            yield from wrap_lines(f"  line {one.line:>5,}  ", _words(one), DIM)
        if len(found.read) > MOST_READ:
            yield line(f"  and {len(found.read) - MOST_READ:,} more; see --format json", DIM)
    if found.remedies:
        yield line()
        yield line("what helps, the cheapest first", BOLD)
        for number, remedy in enumerate(found.remedies, 1):
            verified = " (estimated: it then fits)" if remedy.fits else ""
            yield from wrap_lines(f"  {number}. ", remedy.sentence + verified)
            if remedy.command:
                yield from wrap_lines("     ", remedy.command, DIM)
    for note in found.notes:
        yield from wrap_lines("note: ", note, DIM)
    if found.question:
        yield line()
        yield from wrap_lines("", found.question, WARN)
    yield line()
    yield from wrap_lines("to paste: ", found.summary)


def _cause_lines(found: Diagnosis) -> Iterator[Line]:
    if found.cause is None:
        yield from wrap_lines("", UNKNOWN, WARN)
        return
    cause = found.cause
    style = STYLES.get(cause.certainty, WARN)
    yield from wrap_lines("", f"{cause.certainty}: {cause.sentence}", style)
    where = [f"it died in: {cause.phase}"] if cause.phase else []
    where += [f"for: {cause.tensor}"] if cause.tensor else []
    if where:
        yield from wrap_lines("", "; ".join(where))
    for other in found.others:
        yield from wrap_lines("or, ", f"{other.certainty}: {other.sentence}", DIM)


def _words(one: LogLine) -> str:
    """What a line says, in its own words."""
    text = one.text if len(one.text) <= SHOWN else f"{one.text[:SHOWN]}…"
    return f"{one.what.replace('_', ' ')}: {text}"


def diagnosis_data(found: Diagnosis) -> dict[str, Any]:
    """The diagnosis as data, with the keys of the contract."""
    return {
        "read": [
            {"line": one.line, "what": one.what, "tool": one.tool, "figures": _values(one)}
            for one in found.read
        ],
        "run": found.run,
        "cause": None if found.cause is None else _cause_data(found.cause),
        "others": [_cause_data(one) for one in found.others],
        "evidence": list(found.evidence),
        "remedies": [
            {"sentence": one.sentence, "command": one.command, "fits": one.fits}
            for one in found.remedies
        ],
        "question": found.question,
        "notes": list(found.notes),
        "summary": found.summary,
    }


def _values(one: LogLine) -> dict[str, Any]:
    return {
        name: figure.value if isinstance(figure, Figure) else figure
        for name, figure in one.figures.items()
    }


def _cause_data(cause: Cause) -> dict[str, Any]:
    return {
        key: getattr(cause, key)
        for key in ("id", "sentence", "certainty", "phase", "tensor", "formula")
    }
