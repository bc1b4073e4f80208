"""How an estimate differs from a trace, as tables of MiB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..ledger.units import MIB
from ..trace.diff import DiffRow, DiffSide, KindDiff, LedgerDiff
from .columns import columns
from .lines import BOLD, DIM, WIDTH, Line, line, wrapped
from .parts import KIND_TITLES

SAME = MIB // 100  # less than this shows as 0.00
SIDES = 4  # entries of a kind that are named on each side
FIGURES = ("estimate", "trace", "difference")


def difference_lines(found: LedgerDiff, titles: Mapping[str, str]) -> Iterator[Line]:
    """The phases, then the peak by kind, by place, and entry by entry where it differs.

    `titles` are the phases in words.
    """
    yield line("the estimate against this trace, in MiB", BOLD)
    rows = [DiffRow(titles[row.name], row.estimate_bytes, row.trace_bytes)
            for row in _worst_first(_steps(found.phases))]  # fmt: skip
    yield from _table("peak of each phase", rows)
    yield line()
    text = f"trace: {found.trace_instant}; estimate: {found.estimate_instant}"
    yield from wrapped("at the peak  ", text)
    yield from _table("by kind", [_titled(kind) for kind in found.kinds])
    if found.places:
        yield line()
        yield from _table("activations by place", found.places)
    for kind in found.kinds:
        if abs(kind.row.difference_bytes) >= MIB:
            yield line()
            yield from _entries(kind)


def _titled(kind: KindDiff) -> DiffRow:
    row = kind.row
    return DiffRow(KIND_TITLES[row.name], row.estimate_bytes, row.trace_bytes)


def _steps(rows: Iterable[DiffRow]) -> Iterator[DiffRow]:
    """Phases of the later steps that are alike as one: `s1.a0.fwd` is shown, `s2.a0.fwd` not."""
    seen: set[tuple[str, int, int]] = set()
    for row in rows:
        step, _, rest = row.name.partition(".")
        key = (rest if step != "s0" else row.name, row.estimate_bytes, row.trace_bytes)
        if key not in seen or not rest:
            seen.add(key)
            yield row


def _worst_first(rows: Iterable[DiffRow]) -> list[DiffRow]:
    return sorted(rows, key=lambda row: -abs(row.difference_bytes))


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.2f}"


def _table(title: str, rows: Sequence[DiffRow]) -> Iterator[Line]:
    """Rows that differ; how many do not, in a line."""
    differ = [row for row in rows if abs(row.difference_bytes) >= SAME]
    same = [row.name for row in rows if row not in differ]
    if differ:
        cells = [[row.name, _mib(row.estimate_bytes), _mib(row.trace_bytes),
                  f"{row.difference_bytes / MIB:+,.2f}"] for row in differ]  # fmt: skip
        yield from columns((title, *FIGURES), cells, {1, 2, 3})
    if same:
        label = "no difference: " if differ else f"{title}, no difference: "
        yield from wrapped("", label + ", ".join(same), DIM)


def _entries(kind: KindDiff) -> Iterator[Line]:
    """What a kind is made of on both sides."""
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
