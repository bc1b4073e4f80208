"""Cards that are named by a machine type of a cloud, a label of a node, or a size in MiB."""

from __future__ import annotations

import re
from functools import cache

from ..ledger.units import GIB, MIB
from . import FOLDER, Row, rows
from .cards import meant
from .kept import read_table

CARDS = ("datacenter", "workstation", "consumer")  # kinds that a size can mean
SAME_SIZE = 0.06  # share by which one card's memory differs between nvidia-smi, EC2 and its name
SHARED = re.compile(r"[-_]SHARED$")  # gpu-feature-discovery's end of a name under time slicing
# Keys of labels that clusters choose themselves: gpu-type, accelerator, example.com/gpu-model.
OWN_KEY = re.compile(r"(.*[/._-])?(gpu|gpus|accelerator|card)([-_./]?\w+)*", re.IGNORECASE)


@cache
def _tables() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = read_table(f"{FOLDER}/machines.toml")
    return found


@cache
def _sizes() -> dict[str, tuple[str, int]]:
    """Machine types in lower case, with their card and GPUs."""
    return {
        name.lower(): (row["gpu"], count)
        for row in _tables()["machine"]
        for name, count in row["sizes"].items()
    }


@cache
def labels() -> dict[str, Row]:
    """The rows of labels by their key."""
    return {row["key"]: row for row in _tables()["label"]}


def machines() -> list[Row]:
    """The rows of machine types."""
    return _tables()["machine"]


def machine(name: str) -> tuple[str, int] | None:
    """The card and the GPUs of a machine type, also with SageMaker's ml. in front."""
    return _sizes().get(name.lower().removeprefix("ml."))


def series_cards(name: str) -> str:
    """The cards of all machine types of a series, such as g5; empty where it has none."""
    found = (card for size, (card, _) in _sizes().items() if size.startswith(f"{name.lower()}."))
    return "|".join(dict.fromkeys(found))


def memory_size(mebibytes: int, *, more: bool = False) -> float | None:
    """The size in GB, as marketed, of cards for which nvidia-smi shows this number of MiB, or with
    `more` of the smallest card that has more; None where no card has it.
    """
    asked = mebibytes * MIB
    sizes = [
        (row.get("driver_total_bytes") or row["memory_bytes"], float(row["memory_gb"]))
        for row in rows("gpus")
        if row["vendor"] == "nvidia" and row["kind"] in CARDS
    ]
    if more:
        return min((size for total, size in sizes if total > asked), default=None)
    near = [
        size
        for total, size in sizes
        if min(abs(total / asked - 1), abs(size * GIB / asked - 1)) <= SAME_SIZE
    ]
    return min(near, default=None)


def label_cards(key: str, value: str) -> str | None:
    """The cards that a label means, joined by |; empty where its value means none, and None where
    the label says nothing of cards. Labels that say a size or a slice have no cards.
    """
    row = labels().get(key)
    if row is None:
        own = OWN_KEY.fullmatch(key) and not key.startswith("nvidia.com/") and not value.isdecimal()
        return value if own and meant(value) else None
    if row["says"] in ("memory", "slice"):
        return None
    value = SHARED.sub("", value)
    if row["says"] == "machine":
        found = machine(value)
        return found[0] if found else ""
    if row["says"] == "series":
        return series_cards(value)
    value = row.get("values", {}).get(value, value)
    return value if meant(value) else ""


def named_by(kind: str, value: str) -> str:
    """The cards that a word of a tool means, by its row; empty where it means none."""
    return label_cards(kind, value) or ""
