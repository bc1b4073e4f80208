"""What is alive between two steps, where something else runs."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ...ledger.ledger import GRAD, TEMP, Entry, Ledger
from ...run.phases import OPTIMIZER


def outliving(ledger: Ledger, names: Iterable[str]) -> list[Entry]:
    """The entries of a ledger; those that outlive a step, so neither gradients nor what the
    optimizer needs, are alive at the instants of these names as well.
    """
    end = next(i.name for i in ledger.instants if i.phase == OPTIMIZER and not i.step)
    return [_also_at(list(names), entry, end) for entry in ledger.entries]


def _also_at(names: list[str], entry: Entry, end: str) -> Entry:
    copies = entry.live.get(end, 0)
    if entry.kind in (GRAD, TEMP) or (isinstance(copies, int) and not copies):
        return entry
    return replace(entry, live={**entry.live, **dict.fromkeys(names, copies)})
