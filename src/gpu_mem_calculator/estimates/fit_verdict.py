"""The verdict: whether a run fits on its GPU."""

from __future__ import annotations

from typing import Protocol

from ..ledger.units import GIB

FITS, SHORT, UNSURE = "fits", "does_not_fit", "cannot_tell"
"""The three outcomes. `cannot_tell`: the run survives in the replay, but within the margin; nothing
was replayed, and the tensors alone fit; or something that is not modelled could decide."""
WORDS = {FITS: "fits", SHORT: "does not fit", UNSURE: "cannot tell"}
EXIT_CODES = {FITS: 0, SHORT: 1, UNSURE: 3}  # of commands that check
CLEAR = 1.5
"""With this many times the ledger's highest instant, what is outside torch included, a run fits
without a replay. Its total (needs, margin, outside torch) is at most 1.39 times of that over 610
runs, all measured ones and all cases for trials under a cap (`tests/runfile/test_clear.py`); the
rest
is for runs that are none of them."""


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


def clear_verdict(step: int, highest: int, has: int) -> str:
    """What the ledger alone makes certain; `cannot_tell` where a replay must decide.

    - step: the peak of the steps, with what is outside torch; a replay never needs less
    - highest: the same with start-up
    """
    if step > has:
        return SHORT
    return FITS if highest * CLEAR <= has else UNSURE


def replay_verdict(replayed: Replayed, cap: int) -> str:
    """The verdict where torch may take `cap` bytes: replays under that cap, and under it less the
    margin.
    """
    if cap >= replayed.enough_bytes:
        return FITS
    if not replayed.survives(cap):
        return SHORT
    margin = replayed.margin_bytes
    certain = cap >= replayed.needs_bytes + margin and replayed.survives(cap - margin)
    return FITS if certain else UNSURE


def gap_warning(word: str, replayed: Replayed, cap: int, outside: int) -> str:
    """A sentence where a run survives in less memory than it dies in; else empty. `outside`: bytes
    outside torch, which the sentence adds.
    """
    needs, margin = replayed.needs_bytes, replayed.margin_bytes
    dies = {SHORT: cap, UNSURE: cap - margin}.get(word, 0)
    if dies < needs:
        return ""
    survives, in_card, in_less = (f"{(b + outside) / GIB:.2f}" for b in (needs, cap, dies))
    where = (
        f"this card's {in_card}" if word == SHORT else f"{in_less}, within the margin of {in_card}"
    )
    return (
        f"The run survives in {survives} GiB, but not in {where}: with more memory torch keeps "
        "other blocks, and then finds none that is large enough. "
        "torch.cuda.set_per_process_memory_fraction can give it less."
    )


def headroom_bytes(word: str, beyond: int) -> int:
    """What the card has beyond the total. Its sign is that of the verdict, also where a run
    survives with less memory than it dies with.
    """
    return max(beyond, 0) if word == FITS else min(beyond, -1) if word == SHORT else beyond
