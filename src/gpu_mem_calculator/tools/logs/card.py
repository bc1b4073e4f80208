"""The card that a text names: the device that a program printed, else the one of people's words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...catalog import Row
from ...catalog.cards import meant
from ...runfile.text.errors import InputError
from .nvidia_smi import read_cards
from .read import Log

SMI = ("NVIDIA-SMI", "<nvidia_smi_log>", "FB Memory Usage", "memory.total")
PROSE = 24_000  # characters at the begin in which people name their card
SAME = 0.06  # of a card's memory, within which a printed total is that of the card
TAIL = (
    r"(?:[ -]?(?i:Ti|Super|Laptop(?: GPU)?|Ada(?: Generation)?|SXM\d?|PCIe|NVL)(?![A-Za-z])"
    r"|[ -]?\d{1,3} ?[gG](?:i?[bB])?(?![A-Za-z]))*"
)
CHIPS = (
    r"(?:[TL]4|L40[sS]?|A10G?|A16|A30|A40|A[18]00|V100|P40|P100|K80|H100|H[28]00|H20|B[23]00|GH200"
    r"|MI\d{3}[xX]?)"
)
GEFORCE = r"[1-5]0[5-9]0"
NAMES = (
    r"(?<![A-Za-z0-9_./-])(?:(?i:nvidia|amd|tesla|geforce|quadro|rtx|gtx|radeon|instinct)[ -]?)+"
    rf"[A-Za-z]{{0,2}}\d{{1,4}}[A-Za-z]{{0,2}}{TAIL}",
    rf"(?<![A-Za-z0-9_./=-]){CHIPS}(?![A-Za-z0-9_.=]){TAIL}",
    # A bare number is a card's where how many there are, or what it is, stands beside it.
    r"(?:(?<=[张块卡是用台×*])|(?<=\dx)|(?<=\b(?:on|my) )|(?<=\ba )|(?<=\b(?:one|two) )) ?"
    rf"{GEFORCE}{TAIL}(?![\d.,:/%]| (?:token|step|sample|image|[MG]i?B))",
    rf"(?<![A-Za-z0-9_./=-]){GEFORCE}{TAIL}(?= ?(?:显卡|卡|GPUs?\b|cards?\b))",
    rf"(?<![A-Za-z0-9_./=-]){GEFORCE}(?: ?(?i:Ti|Super|laptop))* \d{{1,2}} ?[gG][bB]?(?![A-Za-z])",
)
MENTION = re.compile("|".join(NAMES))
SIZE = re.compile(r"[ -]?\d{1,3} ?[gG](?:i?[bB])?$")


def named_card(text: str, log: Log, total: int | None) -> str | None:
    """The name of the card; None where the text names none, or several, or where the memory that
    is printed is another's.
    """
    cards = [rows for rows in map(_rows, _device_names(text, log)) if rows]
    cards = cards or [rows for one in MENTION.findall(text[:PROSE]) if (rows := _rows(one))]
    if total is not None:
        every = [row for rows in cards for row in rows]
        near = min(every, key=lambda row: _apart(row, total), default=None)
        return near["name"] if near is not None and _apart(near, total) <= SAME * total else None
    common = [row for row in cards[0] if all(row in rows for rows in cards)] if cards else []
    return common[0]["name"] if common else None


def _device_names(text: str, log: Log) -> Iterator[str]:
    """What programs print of their devices."""
    for line in log.of("card", "card_used"):
        name = line.figures.get("name", line.figures.get("card"))
        if isinstance(name, str):
            yield name
    if any(one in text for one in SMI):
        try:
            yield from (one.name for one in read_cards(text))
        except InputError:  # it is cut, and names no card
            return


def _rows(name: str) -> tuple[Row, ...]:
    """The cards that a name can mean; a size that none of them has is left out."""
    plain = name.strip().rstrip(".")
    return meant(plain) or meant(SIZE.sub("", plain))


def _apart(row: Row, total: int) -> int:
    return abs(int(row["memory_bytes"]) - total)
