"""The card that a command or a file names: by a label, a machine type, a scheduler's option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...catalog import Row
from ...catalog.cards import meant
from ...runfile.text.errors import InputError

CARD_READ = "its card: "
PROFILE = re.compile(r"\d+g\.\d+gb")  # of a MIG slice


class NamedCard(Struct, frozen=True, kw_only=True):
    """What a file says of the card.

    - `name`: as `hardware.gpu` takes it, several joined by `|`; empty where it is not known
    - `memory_gb`: of one card as marketed, where only that is said; with `at_least`, at least
    - `gpus`: of one machine, where a machine type says it
    - `said`: where the card stands, with its value
    """

    name: str = ""
    memory_gb: float | None = None
    at_least: bool = False
    gpus: int | None = None
    said: str = ""

    @property
    def is_known(self) -> bool:
        """Whether it says a card or a size."""
        return bool(self.name) or self.memory_gb is not None

    @property
    def hardware(self) -> dict[str, Any]:
        """The keys of a `hardware` section for it."""
        if self.name:
            return {"gpu": self.name}
        return {} if self.memory_gb is None else {"gpu_memory_gb": self.memory_gb}

    @property
    def least_bytes(self) -> int | None:
        """Memory of one card, of several the least; None where it is not known."""
        if not self.is_known:
            return None
        from ...runfile.config import GPUConfig
        from ...runfile.resolve.hardware import find_hardware

        return find_hardware(GPUConfig(**self.hardware), None).card_bytes


@contextmanager
def naming_card(card: NamedCard | None) -> Iterator[None]:
    """What cannot be read still says the card that was read, or that nothing names it."""
    try:
        yield
    except InputError as error:
        if card is None or any(CARD_READ in one for one in error.problems):
            raise
        read = f"{card.name or card.memory_gb}, by {card.said}" if card.is_known else "not known"
        raise type(error)(f"{one} ({CARD_READ}{read})" for one in error.problems) from None


def card_of(text: str, said: str, gpus: int | None = None) -> NamedCard:
    """The card of a text; without a name where it means none."""
    profile = PROFILE.search(text)
    if profile and not meant(text):  # nvidia_h100_80gb_hbm3_3g.40gb
        whole = card_of(text[: profile.start()].strip("_-. "), "")
        return replace(slice_of(profile[0], whole), said=said)
    return NamedCard(name=text if meant(text) else "", gpus=gpus, said=said)


def slice_of(profile: str, card: NamedCard | None) -> NamedCard:
    """The slice of a card with a MIG profile; of any card that has it where the card is unknown."""
    whole = {row["name"].partition("-")[0] for row in meant(card.name)} if card else set()
    slices = meant(f"mig {profile}")
    own = [row for row in slices if row["name"].partition("-")[0] in whole]
    said = ", ".join(part for part in (f"mig-{profile}", card.said if card else "") if part)
    return NamedCard(name="|".join(row["name"] for row in own or slices), said=said)


def one_of(cards: Sequence[NamedCard]) -> NamedCard | None:
    """The card where one of several is used, and it is not known which; None where there is none.

    It is not known where one of them is not.
    """
    if len(cards) < 2:
        return cards[0] if cards else None
    names = dict.fromkeys(part for card in cards for part in card.name.split("|"))
    name = "|".join(names) if all(card.name for card in cards) else ""
    gpus = cards[0].gpus if len({card.gpus for card in cards}) == 1 else None
    said = " or ".join(dict.fromkeys(card.said for card in cards))
    return NamedCard(name=name, gpus=gpus, said=said)


def all_of(cards: Sequence[NamedCard]) -> NamedCard | None:
    """The card for which all that is said holds; None where nothing is said.

    A size chooses among the cards of a name. Names that mean no common card contradict each other:
    the card is not known.
    """
    if len(cards) < 2:
        return cards[0] if cards else None
    said = ", ".join(dict.fromkeys(card.said for card in cards))
    named = [card for card in cards if card.name]
    sized = [card for card in cards if card.memory_gb is not None]
    if not named:
        return replace(sized[-1], said=said) if sized else NamedCard(said=said)
    gpus = next((card.gpus for card in named if card.gpus is not None), None)
    common = [row for row in meant(named[0].name) if all(_has(card, row) for card in cards)]
    same = [one.name for one in named if list(meant(one.name)) == common]
    name = same[0] if same else "|".join(row["name"] for row in common)
    return NamedCard(name=name, gpus=gpus, said=said)


def _has(card: NamedCard, row: Row) -> bool:
    """Whether a card of the catalogue is one that is meant."""
    if card.name:
        return row in meant(card.name)
    size, own = card.memory_gb, row["memory_gb"]
    return size is None or bool(own >= size if card.at_least else own == size)
