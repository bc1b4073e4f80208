"""The report: a line for each framework, then what changed in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .compare import CHANGED, GONE, MOVED, SAME, CodeChange, Drift, FieldChanges

HEADER = ("framework", "read", "newest", "fields + − default", "cited: changed moved gone")
SHOWN = 12  # names of a list


class Row(NamedTuple):
    """One framework: versions, what differs, or a sentence about what was not compared."""

    name: str
    read: str
    newest: str
    drift: Drift | None = None
    note: str = ""


def report(rows: list[Row], wide: bool = False) -> str:
    """The table and the details; `wide`: long lists in full."""
    lines = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    notes = _joined((row.name, row.note) for row in rows if row.note)
    details = [line for row in rows for line in _details(row, wide)]
    return "\n".join([*table, *([""] if notes else []), *notes, *details])


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    """The cells of one framework."""
    if row.drift is None:
        return row.name, row.read, row.newest, "", ""
    fields = row.drift.fields
    added = sum(len(change.added) for change in fields)
    removed = sum(len(change.removed) for change in fields)
    defaults = sum(len(change.defaults) for change in fields)
    kinds = [change.kind for change in row.drift.code]
    changed, moved, gone = (kinds.count(kind) for kind in (CHANGED, MOVED, GONE))
    gone += len(row.drift.files)
    cited = f"{changed} {moved} {gone} of {len(kinds)}"
    return row.name, row.read, row.newest, f"+{added} −{removed} ~{defaults}", cited


def _details(row: Row, wide: bool) -> Iterator[str]:
    """What changed in one framework, schemas first."""
    if row.drift is None:
        return
    lines = [*_changes(row.drift, wide)]
    if lines:
        yield f"\n{row.name} {row.read} -> {row.newest}"
    yield from (f"  {line}" for line in lines)


def _changes(drift: Drift, wide: bool) -> Iterator[str]:
    """What differs: schemas, those that changed alike together, then cited definitions."""
    yield from _joined((change.schema, _schema(change, wide)) for change in drift.fields)
    for code in sorted(drift.code, key=lambda code: (code.kind, -code.added - code.removed)):
        if code.kind != SAME:
            yield f"{_code(code)}  [{', '.join(code.by)}]"
    for path, by in drift.files.items():
        yield f"gone     {path}  [{', '.join(by)}]"


def _joined(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each text, with every name that has it."""
    names: dict[str, list[str]] = {}
    for name, text in pairs:
        names.setdefault(text, []).append(name)
    return [f"{', '.join(sharing)}: {text}" for text, sharing in names.items()]


def _schema(change: FieldChanges, wide: bool) -> str:
    """The fields of one schema: added, removed, with another default."""
    if change.gone:
        return "gone"
    parts = []
    if change.added:
        parts.append("+ " + _list((f"{n}={v}" for n, v in change.added.items()), wide))
    if change.removed:
        parts.append("− " + _list(change.removed, wide))
    if change.defaults:
        moves = (f"{name}: {old} -> {new}" for name, (old, new) in change.defaults.items())
        parts.append("~ " + _list(moves, wide))
    return "; ".join(parts)


def _code(change: CodeChange) -> str:
    """One cited definition: its kind of change, its name, statements or its new place."""
    if change.kind == GONE:
        return f"gone     {change.key}"
    if change.kind == MOVED:
        return f"moved    {change.key} -> {change.place}"
    elsewhere = "" if change.place == change.key else f" -> {change.place}"
    return f"changed  {change.key}{elsewhere} (+{change.added} −{change.removed} statements)"


def _list(names: Iterable[str], wide: bool) -> str:
    """Names in a row; of a long list the first ones and their number."""
    every = list(names)
    if wide or len(every) <= SHOWN:
        return ", ".join(every)
    return f"{', '.join(every[:SHOWN])} and {len(every) - SHOWN} more"
