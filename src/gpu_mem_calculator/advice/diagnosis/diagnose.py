"""The diagnosis of a text: what it says, set against the run's estimate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...estimates.calculator import Estimate, full_estimate
from ...estimates.fit_verdict import SHORT
from ...runfile.text.errors import InputError
from ...tools.logs.read import Log, read_log
from .crash import Crash, told
from .diagnosis import Advice, Cause, Diagnosis
from .rules import causes, rows

if TYPE_CHECKING:
    from ...tools.read import Anything, Asked

MOST_OTHERS, MOST_REMEDIES = 3, 4


def diagnose(text: str, run: Anything | Asked | None = None) -> Diagnosis:
    """Why a run died, by what it printed.

    run: its run file, command or tool's file, where it is known
    """
    log = read_log(text)
    estimate, notes = _estimated(run)
    crash = Crash(text=text, log=log, estimate=estimate)
    found = causes(crash)
    cause = found[0] if found else None
    return Diagnosis(
        read=log.lines,
        run=None if estimate is None else dict(estimate.result.run),
        cause=cause,
        others=tuple(found[1 : MOST_OTHERS + 1]),
        evidence=tuple(_evidence(crash, cause)),
        remedies=tuple(_remedies(cause, estimate))[:MOST_REMEDIES],
        question=_question(cause, crash),
        notes=(*notes, *_left_out(log)),
        summary=_summary(crash, cause),
    )


def _estimated(run: Any) -> tuple[Estimate | None, tuple[str, ...]]:
    """The estimate of a run; a run that cannot be estimated is no reason to say nothing."""
    if run is None:
        return None, ()
    try:
        return full_estimate(run), ()
    except InputError as error:
        return None, tuple(f"the run was not estimated: {one}" for one in error.problems)


def _evidence(crash: Crash, cause: Cause | None) -> Iterator[str]:
    """Measured against predicted."""
    if cause is not None:
        yield from cause.evidence
    if crash.estimate is None:
        return
    result = crash.estimate.result
    allocated, total = crash.size("allocated"), crash.size("total")
    if allocated is not None:
        highest = result.allocated_bytes
        yield (
            f"torch had allocated {told(allocated)}; at its highest instant,"
            f" {result.peak_instant}, this run has {told(highest)}"
        )
    if total is not None and result.needs_bytes is not None:
        yield f"it needs {told(result.needs_bytes)} of torch's memory; the card has {told(total)}"


def _remedies(cause: Cause | None, estimate: Estimate | None) -> Iterator[Advice]:
    """What helps: changes that were estimated, then those of the cause."""
    if cause is None:
        return
    if estimate is not None and not estimate.serves and estimate.result.verdict == SHORT:
        from ..training.remedies import remedies

        for one in remedies(estimate):
            words = "; ".join(one.changes)
            settings = " ".join(f"--set {setting}" for setting in one.settings)
            yield Advice(sentence=f"{words}: {one.cost}", command=settings, fits=one.certain)
    yield from (Advice(sentence=sentence) for sentence in cause.advice)


def _question(cause: Cause | None, crash: Crash) -> str:
    """What to send if it is still unclear."""
    if cause is None:
        return "Send the whole error message, with the stack above it, and the launch command."
    ask = rows()[cause.id].get("ask", "")
    return f"If it is still unclear, send {ask}." if ask and crash.estimate is None else ""


def _left_out(log: Log) -> Iterator[str]:
    """What was not read."""
    for what, count in log.left_out.items():
        if what == "characters":
            yield f"{count:,} characters in the middle were read for errors alone"
        else:
            yield f"{count:,} more lines of the kind {what} were left out"


def _summary(crash: Crash, cause: Cause | None) -> str:
    """One line."""
    if cause is None:
        return "nothing in the text says why it died"
    parts: Sequence[str] = (f"{cause.certainty}: {cause.sentence}",)
    where = ", ".join(filter(None, (cause.phase, cause.tensor)))
    return " ".join((*parts, f"[{where}]" if where else "")).strip()
