"""What each instant of a step holds, stacked by what it is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ..ledger.ledger import GPU, RUNTIME, Instant, Ledger
from ..ledger.units import GIB
from .patterns import TITLES, titles


class KindSlice(Struct, frozen=True):
    """One kind's bytes at one instant, and the entries they are made of, largest first."""

    kind: str
    bytes: int
    entries: tuple[tuple[str, int], ...]


class InstantColumn(Struct, frozen=True):
    """One instant: its slices from the bottom up."""

    title: str
    phase: str
    slices: tuple[KindSlice, ...]

    @property
    def bytes(self) -> int:
        """Everything on the card at this instant."""
        return sum(one.bytes for one in self.slices)


def column(
    ledger: Ledger, instant: Instant, outside: Iterable[tuple[str, int]] = ()
) -> InstantColumn:
    """What one instant holds on the card; `outside` is what lies there beside torch's memory."""
    return columns_of(ledger, [instant], outside)[0]


def columns_of(
    ledger: Ledger, instants: Sequence[Instant], outside: Iterable[tuple[str, int]] = ()
) -> tuple[InstantColumn, ...]:
    """What each of some instants holds, in one walk over the entries."""
    kinds, beside = titles(ledger), tuple(outside)
    held: dict[str, dict[str, list[tuple[str, int]]]] = {
        instant.name: {kind: [] for kind in kinds} for instant in instants
    }
    for rows in held.values():
        rows[RUNTIME].extend(beside)
    for entry in ledger.entries:
        if entry.place == GPU:
            for name, copies in entry.live.items():
                if name in held and (alive := int(entry.bytes * copies)):
                    held[name][entry.kind].append((entry.name, alive))
    return tuple(_column(instant, held[instant.name]) for instant in instants)


def _column(instant: Instant, held: dict[str, list[tuple[str, int]]]) -> InstantColumn:
    slices = tuple(
        KindSlice(kind, sum(size for _, size in rows), tuple(sorted(rows, key=lambda r: -r[1])))
        for kind, rows in held.items()
    )
    return InstantColumn(instant.title or instant.name, instant.phase, slices)


def note(one: InstantColumn, part: KindSlice) -> str:
    """What a slice is, how much, and its largest entries."""
    largest = ", ".join(f"{name} {size / GIB:,.2f}" for name, size in part.entries[:3])
    rest = len(part.entries) - 3
    more = f" and {rest} more" if rest > 0 else ""
    return (
        f"{one.title}\n{TITLES[part.kind]}: {part.bytes / GIB:,.2f} GiB ({part.bytes:,} bytes)\n"
        f"{largest}{more}"
    )
