"""A diagnosis on one screen: what happened, how certain it is, the evidence, and what helps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import asdict

from ..advice.diagnosis.diagnosis import (
    BYTES,
    CERTAIN,
    LIKELY,
    POSSIBLE,
    Advice,
    Cause,
    Diagnosis,
    PrintedPart,
)
from ..tools.logs.figure import Figure
from ..tools.logs.read import SET_UP, LogLine
from .lines import BAD, BOLD, DIM, WARN, WIDTH, Line, columns, line, size, wrap_lines

STYLES = {CERTAIN: BAD, LIKELY: BAD, POSSIBLE: WARN}
MOST_READ = 6  # lines that were read are shown
OURS = "--set "  # words of a run file, which no other tool has
MOST_PARTS = 8  # rows of printed and estimated figures
UNKNOWN = "cannot tell why it died: nothing in the text says it"
# Kinds of lines whose own name is no plain word.
KINDS_IN_WORDS = {
    "oom_said": "out of memory",
    "oom_killed": "killed for want of memory",
    "snapshot_oom": "snapshot of an out-of-memory error",
    "summary_ooms": "out-of-memory errors so far",
    "cublas_failed": "cuBLAS failed",
    "cpu_allocator": "the host's allocator failed",
    "nccl_oom": "NCCL ran out of memory",
    "shm_full": "shared memory is full",
}


def diagnosis_lines(found: Diagnosis) -> Iterator[Line]:
    """The cause first."""
    yield from _cause_lines(found)
    if found.evidence:
        yield line()
        yield line("evidence", BOLD)
        for sentence in found.evidence:
            yield from wrap_lines("  ", sentence)
    yield from _part_lines(found.parts)
    if found.remedies:
        yield line()
        fits = any(one.fits for one in found.remedies)
        yield line("what helps, the cheapest first" + ("; * fits, by an estimate" * fits), BOLD)
        for number, remedy in enumerate(found.remedies, 1):
            yield from _remedy_lines(number, remedy)
    if found.question:
        yield line()
        yield from wrap_lines("", found.question, WARN)
    yield from _read_lines(found)
    for note in found.notes:
        yield from wrap_lines("note: ", note, DIM)


def unknown_words(found: Diagnosis) -> str:
    """What is said without a cause."""
    return found.summary if found.error else UNKNOWN


def _cause_lines(found: Diagnosis) -> Iterator[Line]:
    if found.cause is None:
        yield from wrap_lines("", unknown_words(found), WARN)
        return
    cause = found.cause
    words = f"{cause.certainty}: {cause.sentence}"
    yield from wrap_lines("", words, STYLES[cause.certainty])
    where = [f"it died in: {cause.phase}"] if cause.phase else []
    where += [f"for: {cause.tensor}"] if cause.tensor else []
    if where:
        yield from wrap_lines("", "; ".join(where))
    for other in found.others:
        yield from wrap_lines("or, ", f"{other.certainty}: {other.sentence}", DIM)


def _remedy_lines(number: int, remedy: Advice) -> Iterator[Line]:
    """A remedy in two rows: what to change, as far as it has room, and the words to paste. Ours are
    left out where they are long; `--format json` has them.
    """
    label, words = f"  {number}.{'*' if remedy.fits else ' '}", remedy.command
    if words.startswith(OURS) and len(words) > WIDTH - len(label):
        words = ""
    sentence = remedy.sentence
    if words:
        clauses = sentence.split("; ")
        while len("; ".join(clauses)) > WIDTH - len(label) - 3 and len(clauses) > 1:
            clauses.pop()
        kept = "; ".join(clauses)
        sentence = kept if kept == sentence else f"{kept}; …"
    yield from wrap_lines(f"{label} ", sentence)
    if words:
        yield from wrap_lines(" " * (len(label) + 1), words, DIM)


def _read_lines(found: Diagnosis) -> Iterator[Line]:
    """The first lines that were read, one row each."""
    if not found.read:
        return
    many = len(found.read)
    lines = "1 line that says" if many == 1 else f"{many:,} lines that say"
    yield line()
    yield line(f"read: {lines} something of memory", BOLD)
    for one in found.read[:MOST_READ]:
        words = f"  line {one.line:>5,}  {_words(one)}"
        yield line(words if len(words) <= WIDTH else f"{words[: WIDTH - 1]}…", DIM)
    if many > MOST_READ:
        yield line(f"  and {many - MOST_READ:,} more; see --format json", DIM)


def _part_lines(found: Sequence[PrintedPart]) -> Iterator[Line]:
    """What was printed beside the estimate; where there are many, what differs, and the rest that
    has room.
    """
    if all(one.estimated is None for one in found):
        return
    apart = [one for one in found if one.beyond]
    rest = [one for one in found if not one.beyond]
    shown = [*apart[:MOST_PARTS], *rest[: max(MOST_PARTS - len(apart), 0)]]
    rows = [
        (
            f"  {one.name}"
            + (
                f" {one.where}"
                if one.where.startswith("in ")
                else f", {one.where}"
                if one.where
                else ""
            ),
            *(figure(value, one.unit) for value in (one.printed, one.estimated)),
            "differs" if one.beyond else "",
        )
        for one in found
        if one in shown
    ]
    yield line()
    yield from columns(("part by part", "printed", "estimated", ""), rows, {1, 2})
    if len(found) > len(shown):
        yield line(f"  and {len(found) - len(shown):,} more; see --format json", DIM)


def figure(value: int | None, unit: str) -> str:
    """A figure of a part with its unit."""
    if value is None:
        return "-"
    return size(value) if unit == BYTES else f"{value:,} {unit}"


def _words(one: LogLine) -> str:
    """What a line says, in its own words; of the set-up its numbers."""
    if one.what == SET_UP:
        return f"set-up: {', '.join(_told(*each) for each in _values(one).items())}"
    return f"{_kind(one)}: {one.text}"


def _kind(one: LogLine) -> str:
    """What a line says, in words."""
    words = KINDS_IN_WORDS.get(one.what) or one.what.replace("_", " ")
    return re.sub(r" oom$", " ran out of memory", re.sub(r"\bkv\b", "KV", words))


def _told(name: str, value: int | float) -> str:
    plain = name.removesuffix("_bytes")
    return f"{plain} {size(int(value)) if plain != name else f'{value:,}'}".replace("_", " ")


def diagnosis_data(found: Diagnosis) -> dict[str, Any]:
    """The diagnosis as data, with the keys of the contract."""
    return {
        "read": [
            {
                "line": one.line,
                "what": one.what,
                "kind": _kind(one),
                "tool": one.tool,
                "figures": _values(one),
            }
            for one in found.read
        ],
        "run": found.run,
        "cause": None if found.cause is None else _cause_data(found.cause),
        "others": [_cause_data(one) for one in found.others],
        "evidence": list(found.evidence),
        "parts": [asdict(one) for one in found.parts],
        "remedies": [
            {"sentence": one.sentence, "command": one.command, "fits": one.fits}
            for one in found.remedies
        ],
        "error": found.error,
        "question": found.question,
        "notes": list(found.notes),
        "verdict": found.verdict,
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
