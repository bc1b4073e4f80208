"""The differences between an estimate and a trace, as tables in MiB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..lab.trace.diff import DiffRow, DiffSide, KindDiff, LedgerDiff
from ..ledger.units import MIB
from .columns import columns
from .lines import BOLD, DIM, WIDTH, Line, line, wrap_lines
from .parts import KIND_TITLES

SAME = MIB // 100  # less than this shows as 0.00
SIDES = 4  # entries of a kind that are listed on each side
FIGURES = ("estimate", "trace", "difference")


def difference_lines(diff: LedgerDiff, titles: Mapping[str, str]) -> Iterator[Line]:
    """The differences by phase, then at the peak by kind, by place, and by entry.

    `titles` are the titles of phases by name.
    """
    yield line("the estimate against this trace, in MiB", BOLD)
    rows = [
        DiffRow(titles[row.name], row.estimate_bytes, row.trace_bytes)
        for row in _worst_first(_steps(diff.phases))
    ]
    yield from _table("peak of each phase", rows)
    yield line()
    text = f"trace: {diff.trace_instant}; estimate: {diff.estimate_instant}"
    yield from wrap_lines("at the peak  ", text)
    yield from _table("by kind", [_titled_row(kind) for kind in diff.kinds])
    if diff.places:
        yield line()
        yield from _table("activations by place", diff.places)
    for kind in diff.kinds:
        if abs(kind.row.difference_bytes) >= MIB:
            yield line()
            yield from _entries(kind)


def _titled_row(kind: KindDiff) -> DiffRow:
    row = kind.row
    return DiffRow(KIND_TITLES[row.name], row.estimate_bytes, row.trace_bytes)


def _steps(rows: Iterable[DiffRow]) -> Iterator[DiffRow]:
    """Leave out phases of later steps with equal figures: `s1.a0.fwd` is shown, `s2.a0.fwd` not."""
    shown: set[tuple[str, int, int]] = set()
    for row in rows:
        step, _, rest = row.name.partition(".")
        key = (rest if step != "s0" else row.name, row.estimate_bytes, row.trace_bytes)
        if key not in shown or not rest:
            shown.add(key)
            yield row


def _worst_first(rows: Iterable[DiffRow]) -> list[DiffRow]:
    return sorted(rows, key=lambda row: -abs(row.difference_bytes))


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.2f}"


def _table(title: str, rows: Sequence[DiffRow]) -> Iterator[Line]:
    """A table of the rows that differ, and a line with the names of the others."""
    differ = [row for row in rows if abs(row.difference_bytes) >= SAME]
    same = [row.name for row in rows if row not in differ]
    if differ:
        cells = []
        for row in differ:
            sizes = (_mib(row.estimate_bytes), _mib(row.trace_bytes))
            cells.append([row.name, *sizes, f"{row.difference_bytes / MIB:+,.2f}"])
        yield from columns((title, *FIGURES), cells, {1, 2, 3})
    if same:
        label = "no difference: " if differ else f"{title}, no difference: "
        yield from wrap_lines("", label + ", ".join(same), DIM)


def _entries(kind: KindDiff) -> Iterator[Line]:
    """The entries of a kind in the estimate and in the trace."""
    row = kind.row
    title = f"{KIND_TITLES[row.name]}, {row.difference_bytes / MIB:+,.2f} MiB"
    yield line(title, BOLD)
    yield from _side("estimate", kind.estimate)
    yield from _side("trace", kind.trace)


def _side(title: str, sides: Sequence[DiffSide]) -> Iterator[Line]:
    label = title
    for side in sides[:SIDES]:
        copies = f"{side.copies} × " if 1 < side.copies < side.bytes else ""
        text = f"  {label:<9}{_mib(side.bytes):>12}  {copies}{side.name}"
        yield line(text if len(text) <= WIDTH else text[: WIDTH - 1] + "…")
        label = ""
    rest = sides[SIDES:]
    if rest:
        total = sum(side.bytes for side in rest)
        yield line(f"  {label:<9}{_mib(total):>12}  {len(rest)} more", DIM)
    if not sides:
        yield line(f"  {label:<9}{'nothing':>12}", DIM)
