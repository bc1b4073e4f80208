"""Cards that others use, too: what a run finds free, and who holds what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..ledger.units import gib

if TYPE_CHECKING:
    from ..tools.logs.nvidia_smi import SmiCard

IDLE = 2**25  # bytes that nvidia-smi shows as used on a card that nothing uses
MOST_NAMED = 4  # processes of a card
LONGEST = 60  # characters of a process's name


class BusyCards(Struct, frozen=True):
    """The cards that a run would use, as nvidia-smi shows them.

    - `cards`: all of the machine; `visible`: those that its variable leaves, where it is set
    """

    cards: tuple[SmiCard, ...] = ()
    visible: tuple[str, ...] = ()

    def used(self, devices: Sequence[str], count: int) -> list[SmiCard]:
        """Those of a run with `count` on each node; `devices`: the ones that it names itself."""
        if not self.cards:
            return []
        from ..tools.logs.nvidia_smi import used_cards

        return used_cards(self.cards, devices or self.visible, count)

    def held(self, devices: Sequence[str], count: int) -> int:
        """What others hold of the one of them that has least free, in bytes; 0 for next to
        nothing.
        """
        most = max((one.held for one in self.used(devices, count)), default=0)
        return most if most > IDLE else 0

    def free(self, count: int) -> tuple[str, ...]:
        """The numbers of as many cards that nothing uses; empty where there are fewer."""
        idle = [one.index for one in self.cards if one.held <= IDLE]
        return tuple(idle[:count]) if len(idle) >= count else ()


def unlike_words(cards: Sequence[SmiCard]) -> str:
    """`the 2 cards are of 2 kinds (rtx-a6000, rtx-3090)`; "" where all are alike."""
    kinds = {(one.row["name"] if one.row else one.name or one.total): one for one in cards}
    if len(kinds) < 2:
        return ""
    return f"the {len(cards)} cards are of {len(kinds)} kinds ({', '.join(map(str, kinds))})"


def other_card_words(cards: Sequence[SmiCard], gpu: str | None) -> str:
    """That nvidia-smi shows another card than the one that is estimated; "" where it does not, or
    where one of them is not known.
    """
    from ..catalog.cards import meant

    named = [one["name"] for one in meant(gpu or "")]
    other = next((one for one in cards if one.row and one.row["name"] not in named), None)
    if not named or other is None:
        return ""
    shown = f"nvidia-smi shows {other.name}, and the estimate is for {gpu}"
    return f"{shown}: what is held of the one is counted on the other"


def busy_lines(cards: Sequence[SmiCard]) -> Iterator[str]:
    """`GPU 0: 21.3 of 79.2 GiB are held: 20.9 by python (1234), 0.4 by what is not listed`."""
    for card in cards:
        total = card.process_total
        if total is None or card.held <= IDLE:
            continue
        parts = ", ".join(_holders(card))
        yield f"GPU {card.index}: {gib(card.held)} of {gib(total)} GiB are held: {parts}"


def _holders(card: SmiCard) -> Iterator[str]:
    known = [(one.num_bytes, one) for one in card.processes if one.num_bytes is not None]
    known.sort(key=lambda pair: -pair[0])
    for size, one in known[:MOST_NAMED]:
        yield f"{gib(size)} by {_name(one.name)} ({one.pid})"
    rest = known[MOST_NAMED:]
    if rest:
        yield f"{gib(sum(size for size, _ in rest))} by {len(rest)} more"
    unlisted = card.held - sum(size for size, _ in known)
    unknown = [_name(one.name) for one in card.processes if one.num_bytes is None]
    if unlisted > IDLE or not known:
        who = "a desktop and programs" if card.desktop else "what is not listed"
        named = f" ({', '.join(unknown[:MOST_NAMED])})" if unknown else ""
        yield f"{gib(unlisted)} by {who}{named}"


def _name(text: str) -> str:
    """The program of a process without its folder."""
    name = text.replace("\\", "/").rpartition("/")[2] or text
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def busy_data(cards: Sequence[SmiCard]) -> list[dict[str, Any]]:
    """The same as data."""
    return [
        {
            "index": card.index,
            "name": card.name,
            "total_bytes": card.process_total,
            "held_bytes": card.held,
            "processes": [
                {"pid": one.pid, "name": _name(one.name), "bytes": one.num_bytes}
                for one in card.processes
            ],
        }
        for card in cards
    ]
