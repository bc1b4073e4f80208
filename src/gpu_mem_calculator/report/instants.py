"""The memory at each instant of a step, stacked by kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ..ledger.ledger import GPU, RUNTIME, Instant, Ledger
from ..ledger.units import GIB
from .patterns import TITLES, titles


class KindSlice(Struct, frozen=True):
    """The bytes of one kind at one instant, and its entries (name, bytes), largest first."""

    kind: str
    bytes: int
    entries: tuple[tuple[str, int], ...]


class InstantColumn(Struct, frozen=True):
    """One instant, with its slices from the bottom up.

    In the course of a step:
    - layer: the one that runs, from 1 on; 0: none
    - micro_batch: the one that runs
    - first, last: the numbers of the step's stretches that it stands for; -1: it is no part of one
    """

    title: str
    phase: str
    slices: tuple[KindSlice, ...]
    layer: int = 0
    micro_batch: int = -1
    first: int = -1
    last: int = -1

    @property
    def bytes(self) -> int:
        """All bytes on the card at this instant."""
        return sum(one.bytes for one in self.slices)


def column(
    ledger: Ledger, instant: Instant, outside: Iterable[tuple[str, int]] = ()
) -> InstantColumn:
    """The memory on the card at one instant; `outside`: (name, bytes) of what is outside torch."""
    return columns_of(ledger, [instant], outside)[0]


def columns_of(
    ledger: Ledger, instants: Sequence[Instant], outside: Iterable[tuple[str, int]] = ()
) -> tuple[InstantColumn, ...]:
    """The memory on the card at each of some instants, in one pass over the entries."""
    kinds, outside_rows = titles(ledger), tuple(outside)
    alive_at: dict[str, dict[str, list[tuple[str, int]]]] = {
        instant.name: {kind: [] for kind in kinds} for instant in instants
    }
    for rows in alive_at.values():
        rows[RUNTIME].extend(outside_rows)
    for entry in ledger.entries:
        if entry.place == GPU:
            for name, copies in entry.live.items():
                if name in alive_at and (alive := int(entry.bytes * copies)):
                    alive_at[name][entry.kind].append((entry.name, alive))
    return tuple(_column(instant, alive_at[instant.name]) for instant in instants)


def _column(instant: Instant, rows_by_kind: dict[str, list[tuple[str, int]]]) -> InstantColumn:
    slices = tuple(
        KindSlice(kind, sum(size for _, size in rows), tuple(sorted(rows, key=lambda r: -r[1])))
        for kind, rows in rows_by_kind.items()
    )
    return InstantColumn(instant.title or instant.name, instant.phase, slices)


def note(one: InstantColumn) -> str:
    """The tooltip of a column: its kinds, and the largest entry of each."""
    lines = [f"{one.title}: {one.bytes / GIB:,.2f} GiB"]
    for part in reversed(one.slices):
        if part.bytes:
            largest = "".join(f": {name} {size / GIB:,.2f}" for name, size in part.entries[:1])
            more = f" and {len(part.entries) - 1} more" if len(part.entries) > 1 else ""
            lines.append(f"{TITLES[part.kind]} {part.bytes / GIB:,.2f}{largest}{more}")
    return "\n".join(lines)
