"""The verdict on a card in words, and the figures it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..ledger.units import gib
from .fit_verdict import CLEAR, OPEN, SHORT

if TYPE_CHECKING:
    from .result import MemoryResult

GAP = 2**20  # bytes short that are not said: the verdict is then that of a gap, not of a size


class CardVerdict(NamedTuple):
    """The verdict on a card, in bytes.

    - needs: what the card must have; margin: what must be added to be certain
    - has: what it has
    - headroom: what it has beyond both
    - most: where nothing was replayed, the most that the card may have to have; `needs` is then the
      tensors alone
    """

    word: str
    needs: int
    margin: int
    has: int
    headroom: int
    most: int | None = None


def result_verdict(result: MemoryResult) -> CardVerdict:
    """The verdict of a result."""
    card, margin = total_bytes(result), result.margin_bytes or 0
    has, most = result.gpu_memory_bytes, None
    if result.needs_bytes is None:
        highest = max(card, (result.startup_bytes or 0) + result.outside_torch_bytes)
        most = int(highest * CLEAR)
    return CardVerdict(result.verdict, card - margin, margin, has, result.headroom_bytes, most)


def total_bytes(result: MemoryResult) -> int:
    """Bytes that the card must have: what torch needs with its margin (the peak where nothing was
    replayed), and what is outside torch. For a server, what it takes.
    """
    if result.serving is not None or result.needs_bytes is None:
        return result.allocated_bytes + result.outside_torch_bytes
    return result.needs_bytes + (result.margin_bytes or 0) + result.outside_torch_bytes


def needs_words(found: CardVerdict) -> str:
    """What the card must have, and with how much the run is certain to survive; the latter alone
    where the card has less than the former. Where nothing was replayed, the bounds.
    """
    least, certain = gib(found.needs), gib(found.needs + found.margin)
    if found.most is not None:
        return f"at least {least}" if found.word == SHORT else f"about {least} to {gib(found.most)}"
    decided = least == certain or found.needs > found.has
    return certain if decided else f"{least}, certain with {certain}"


def verdict_words(found: CardVerdict) -> str:
    """The verdict in words, such as `fits, 8.7 GiB to spare`."""
    if found.word == OPEN or -GAP < found.headroom < 0:
        return found.word
    figure = gib(abs(found.headroom))
    figure = "<0.1" if figure == "0.0" else figure
    return f"{found.word}, {figure} GiB {'short' if found.headroom < 0 else 'to spare'}"
