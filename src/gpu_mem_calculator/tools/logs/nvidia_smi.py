"""The cards that nvidia-smi prints, what of them is free, and which processes hold what: as its
table, of `-q`, of `-q -x`, and of its queries with `--format=csv`.

Used is without what the driver keeps for itself, since driver 510 (`Reserved`); free and reserved
are not in the table. A slice of a card (MIG) is a card. Under WDDM the driver does not know what a
process holds (NVML, nvmlProcessInfo_t).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...catalog import Row, rows
from ...catalog.cards import meant
from ...ledger.units import MIB
from ...runfile.text.errors import InputError

MOST_CHARACTERS = 4 * 10**6
SIZE = re.compile(r"([\d.]+) ?(?:MiB)?")
TABLE_CARD = re.compile(r"^\| +(\d+) +(.+?) +(?:On|Off|N/A|WDDM|TCC|MCDM) +\| +[\dA-F]{4,8}:", re.M)
TABLE_USED = re.compile(r"(\d+)MiB / +(\d+)MiB")
TABLE_SLICE = re.compile(
    r"^\| +(\d+) +(\d+) +(\d+) +(\d+) +\| +(\d+)MiB / +(\d+)MiB", re.M
)  # of GPU, GI, CI and MIG device
TABLE_PROCESS = re.compile(
    r"^\| +(\d+) +(?:(\S+) +\S+ +)?(\d+) +([CGM+]+) +(\S.*?) +(\d+MiB|N/A) +\|", re.M
)
WDDM = re.compile(r"\bWDDM\b")
QUERY_CARD = re.compile(r"^GPU [\dA-Fa-f]+:[\dA-Fa-f:.]+ *$", re.M)
QUERY_PROCESS = re.compile(
    r"Process ID +: (\d+)(?:(?!Process ID).)*?Name +: ([^\n]*)\n *Used GPU Memory +: ([^\n]*)", re.S
)
XML_PROCESS = re.compile(
    r"<process_info>.*?<pid>(\d+)</pid>.*?<process_name>(.*?)</process_name>"
    r".*?<used_memory>(.*?)</used_memory>",
    re.S,
)
APPS = "used_gpu_memory", "used_memory"  # columns of a query of processes


class SmiProcess(Struct, frozen=True):
    """A process and the bytes that it holds; None where the driver does not know them."""

    pid: str
    name: str
    num_bytes: int | None = None


class SmiCard(Struct, frozen=True, kw_only=True):
    """A card as nvidia-smi prints it; sizes in bytes, None where they are not printed.

    - `index`: as CUDA_VISIBLE_DEVICES numbers it, of a slice as `0:1`; `uuid`: of the card
    - `total`: of the card; `kept`: of it by the driver; `used`: by processes; `free`: the rest
    - `desktop`: whether Windows draws on it (WDDM)
    """

    index: str
    name: str = ""
    uuid: str = ""
    total: int | None = None
    kept: int | None = None
    used: int | None = None
    free: int | None = None
    processes: tuple[SmiProcess, ...] = ()
    desktop: bool = False

    @property
    def row(self) -> Row | None:
        """The card of the catalogue: of those that the name means the one whose size is nearest."""
        found = meant(self.name.rstrip(". ")) if self.name else ()
        if self.total is None or not found:
            return next(iter(found), None)
        size = self.total
        return min(found, key=lambda one: abs(one.get("driver_total_bytes", _total(one)) - size))

    @property
    def process_total(self) -> int | None:
        """What a process sees as the total: without what the driver keeps."""
        if self.total is None:
            return None
        if self.kept is not None:
            return self.total - self.kept
        return min(self.total, _total(self.row)) if self.row is not None else self.total

    @property
    def available(self) -> int | None:
        """What a process that starts now can take."""
        total = self.process_total
        if self.free is not None or total is None or self.used is None:
            return self.free if total is None or self.free is None else min(self.free, total)
        return max(total - self.used, 0)

    @property
    def held(self) -> int:
        """What other processes and a desktop hold; 0 where that is not known."""
        total, free = self.process_total, self.available
        return 0 if total is None or free is None else max(total - free, 0)

    @property
    def section(self) -> dict[str, Any]:
        """The keys of a `hardware` section for the card, without what others hold."""
        row, size = self.row, self.process_total
        named = {"gpu": row["name"]} if row is not None else {}
        return named if size is None else {**named, "gpu_memory_bytes": size}


def _total(row: Row) -> int:
    return int(row["memory_bytes"])


def read_cards(text: str) -> list[SmiCard]:
    """The cards of a text that nvidia-smi printed; raises where it has none."""
    text = text[:MOST_CHARACTERS].replace("\r\n", "\n")
    if "<nvidia_smi_log>" in text:
        found = list(_xml_cards(text))
    elif QUERY_CARD.search(text):
        found = list(_query_cards(text))
    elif TABLE_CARD.search(text):
        found = list(_table_cards(text))
    else:
        found = list(_csv_cards(text))
    if not found:
        raise InputError(
            "it has no card; give what nvidia-smi prints (its table, -q, -q -x, or --query-gpu="
            "index,uuid,name,memory.total,memory.reserved,memory.used,memory.free --format=csv)"
        )
    return found


def used_cards(cards: Sequence[SmiCard], devices: Sequence[str], count: int) -> list[SmiCard]:
    """The cards that a process uses: those that are named, by number or UUID, else the first."""
    named = [one for name in devices for one in cards if _is(one, name)]
    return named[:count] if named else list(cards[:count])


def _is(card: SmiCard, name: str) -> bool:
    uuid = name.startswith(("GPU-", "MIG-")) and card.uuid.startswith(name)
    return name in (card.index, f"cuda:{card.index}") or uuid


def _size(text: str | None) -> int | None:
    """Bytes of `81559 MiB`; None for `N/A` and what is no size."""
    found = SIZE.fullmatch((text or "").strip())
    return int(float(found[1]) * MIB) if found else None


def _table_cards(text: str) -> Iterator[SmiCard]:
    names = list(TABLE_CARD.finditer(text))
    held: dict[tuple[str, str], list[SmiProcess]] = {}
    for one in TABLE_PROCESS.finditer(text):
        place = one[1], one[2] or "N/A"
        held.setdefault(place, []).append(SmiProcess(one[3], one[5], _size(one[6])))
    slices = list(TABLE_SLICE.finditer(text))
    for number, one in enumerate(names):
        end = names[number + 1].start() if number + 1 < len(names) else len(text)
        sizes = TABLE_USED.search(text, one.end(), end)
        card = SmiCard(index=one[1], name=one[2], desktop=bool(WDDM.search(one[0])))
        used, total = (int(sizes[i]) * MIB for i in (1, 2)) if sizes else (None, None)
        card = replace(card, used=used, total=total)
        own = [part for part in slices if part[1] == card.index]
        if own:
            for part in own:
                used, total = (int(part[i]) * MIB for i in (5, 6))
                processes = tuple(held.get((part[1], part[2]), ()))
                yield _slice(card, part[4], total, used, processes=processes)
            continue
        every = tuple(p for place, own in held.items() if place[0] == one[1] for p in own)
        yield replace(card, processes=every)


def _slice(
    card: SmiCard,
    number: str,
    total: int | None,
    used: int | None,
    free: int | None = None,
    processes: tuple[SmiProcess, ...] = (),
) -> SmiCard:
    """A slice of a card: the profile of it whose size is nearest."""
    whole = card.row["name"] if card.row is not None else ""
    every = (row for row in rows("gpus") if row["kind"] == "slice")
    own = [row for row in every if whole.startswith(row["name"].partition("-mig-")[0])]
    near = min(own, key=lambda row: abs(_total(row) - (total or 0)), default=None)
    return SmiCard(
        index=f"{card.index}:{number}",
        name=near["name"] if near is not None else f"{card.name} MIG",
        uuid=card.uuid,
        total=total,
        used=used,
        free=free,
        processes=processes,
    )


def _sections(text: str, begins: re.Pattern[str]) -> Iterator[str]:
    places = [one.start() for one in begins.finditer(text)]
    for begin, end in zip(places, [*places[1:], len(text)], strict=True):
        yield text[begin:end]


def _query_cards(text: str) -> Iterator[SmiCard]:
    """Of `-q`."""

    def value(part: str, name: str) -> str | None:
        found = re.search(rf"^ *{name} +: ([^\n]*)", part, re.M)
        return found[1].strip() if found else None

    for number, part in enumerate(_sections(text, QUERY_CARD)):
        memory = part.partition("FB Memory Usage")[2].partition("BAR1")[0]
        model = re.search(r"Driver Model\s+Current +: (\S+)", part)
        yield SmiCard(
            index=str(number),
            name=value(part, "Product Name") or "",
            uuid=value(part, "GPU UUID") or "",
            total=_size(value(memory, "Total")),
            kept=_size(value(memory, "Reserved")),
            used=_size(value(memory, "Used")),
            free=_size(value(memory, "Free")),
            processes=tuple(
                SmiProcess(pid, name.strip(), _size(size))
                for pid, name, size in QUERY_PROCESS.findall(part)
            ),
            desktop=model is not None and model[1] == "WDDM",
        )


def _xml_cards(text: str) -> Iterator[SmiCard]:
    """Of `-q -x`; by patterns, since a text from elsewhere is no XML to be trusted."""

    def value(part: str, name: str) -> str:
        found = re.search(rf"<{name}>(.*?)</{name}>", part, re.S)
        return found[1].strip() if found else ""

    def processes(part: str) -> tuple[SmiProcess, ...]:
        every = XML_PROCESS.findall(part)
        return tuple(SmiProcess(pid, name, _size(size)) for pid, name, size in every)

    for number, part in enumerate(_sections(text, re.compile(r"<gpu id="))):
        whole = re.sub(r"<mig_devices>.*?</mig_devices>", "", part, flags=re.S)
        memory = value(whole, "fb_memory_usage")
        total, kept, used, free = (
            _size(value(memory, name)) for name in ("total", "reserved", "used", "free")
        )
        card = SmiCard(
            index=str(number),
            name=value(whole, "product_name"),
            uuid=value(whole, "uuid"),
            total=total,
            kept=kept,
            used=used,
            free=free,
            processes=processes(whole),
            desktop=value(whole, "current_dm") == "WDDM",
        )
        slices = re.findall(r"<mig_device>(.*?)</mig_device>", part, re.S)
        for one in slices:
            own = value(one, "fb_memory_usage")
            total, used, free = (_size(value(own, name)) for name in ("total", "used", "free"))
            yield _slice(card, value(one, "index"), total, used, free)
        if not slices:
            yield card


def _csv_cards(text: str) -> Iterator[SmiCard]:
    """Cards of `--query-gpu`, with the processes that `--query-compute-apps` prints after them."""
    header: list[str] = []
    cards: list[SmiCard] = []
    for words in csv.reader(text.splitlines(), skipinitialspace=True):
        names = [word.partition(" [")[0].strip() for word in words]
        if {"memory.total", *APPS} & set(names):
            header = names
        elif header and len(words) == len(header):
            row = dict(zip(header, words, strict=True))
            if "memory.total" in row:
                cards.append(_csv_card(row, len(cards)))
            else:
                cards = [_holding(card, row, alone=len(cards) == 1) for card in cards]
    yield from cards


def _csv_card(row: Mapping[str, str], number: int) -> SmiCard:
    return SmiCard(
        index=row.get("index", str(number)).strip(),
        name=row.get("name", "").strip(),
        uuid=(row.get("uuid") or row.get("gpu_uuid") or "").strip(),
        total=_size(row.get("memory.total")),
        kept=_size(row.get("memory.reserved")),
        used=_size(row.get("memory.used")),
        free=_size(row.get("memory.free")),
        desktop="WDDM" in row.get("driver_model.current", ""),
    )


def _holding(card: SmiCard, row: Mapping[str, str], *, alone: bool) -> SmiCard:
    """A card with the process of a row, where it is on that card."""
    uuid = row.get("gpu_uuid") or row.get("uuid") or ""
    if uuid.strip() != card.uuid if uuid else not alone:
        return card
    size = next((row[name] for name in APPS if name in row), None)
    name = row.get("process_name") or row.get("name") or ""
    one = SmiProcess(row.get("pid", "").strip(), name.strip(), _size(size))
    return replace(card, processes=(*card.processes, one))
