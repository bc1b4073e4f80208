"""The verdict: whether a run fits on its GPU."""

from __future__ import annotations

from typing import Protocol

FITS, TIGHT, SHORT, OPEN = "fits", "tight", "does not fit", "may fit"
"""`tight`: the run survives in the replay, but within the margin. `may fit`: nothing was replayed,
and the tensors alone fit."""


class Replayed(Protocol):
    """A run whose requests can be replayed under any cap; figures are bytes that torch may take."""

    @property
    def needs_bytes(self) -> int:
        """The least with which it survives."""
        ...

    @property
    def margin_bytes(self) -> int:
        """What must be added to be certain."""
        ...

    @property
    def enough_bytes(self) -> int:
        """Enough in any case."""
        ...

    def survives(self, cap: int) -> bool:
        """Whether it survives under a cap."""
        ...


def ledger_verdict(needs: int, has: int) -> str:
    """The verdict by the ledger alone, on a card that has `has` bytes."""
    return SHORT if needs > has else OPEN


def replay_verdict(replayed: Replayed, cap: int) -> str:
    """The verdict where torch may take `cap` bytes: a replay under that cap less the margin."""
    if cap >= replayed.enough_bytes:
        return FITS
    certain = replayed.needs_bytes + replayed.margin_bytes
    if cap >= certain and replayed.survives(cap - replayed.margin_bytes):
        return FITS
    return TIGHT if replayed.survives(cap) else SHORT


def headroom_bytes(word: str, beyond: int) -> int:
    """What the card has beyond the total. Its sign is that of the verdict, also where a run
    survives with less memory than it dies with.
    """
    return max(beyond, 0) if word == FITS else min(beyond, -1) if word in (TIGHT, SHORT) else beyond
