"""The card that options of Slurm name: the type of a GPU, a constraint, a partition (sbatch(1))."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...catalog.cards import meant
from ..reading.card import NamedCard, all_of, card_of, one_of

# Options with [TYPE:]COUNT; TYPE alone is one.
TYPED = ("--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket")
LISTED = ("--gres", "--gres-flags", "--tres-per-task")  # with gpu:TYPE:COUNT among others
GRES = re.compile(r"\bgpu:([A-Za-z0-9][\w.+-]*?)(?::\d+)?(?:\(.*\))?(?=,|$)")
TYPE = re.compile(r"([A-Za-z0-9][\w.+-]*?)(?::\d+)?")
# A feature that says GB of one GPU: gpu80, 80gb, gpu_mem:80GB, vram-48.
SIZE = re.compile(r"(?:gpu|vram|gmem|gpu_?mem)?[-_:]?(\d{2,3})(?:gi?b?)?", re.IGNORECASE)
SIZES = (11, 12, 16, 20, 24, 32, 40, 48, 80, 94, 96, 141, 180, 192)
CARDS = ("datacenter", "workstation", "consumer", "slice")


def slurm_card(given: Mapping[str, str]) -> NamedCard | None:
    """The card of a job by its options, each by its long name; None where they name none.

    A partition is a name that a cluster chooses. It counts where it is a card's whole name, and
    nothing else says the card.
    """
    said = [_typed(f"{name}={given[name]}", TYPE, given[name]) for name in TYPED if name in given]
    said += [_typed(f"{name}={given[name]}", GRES, given[name]) for name in LISTED if name in given]
    said.append(_constraint(given.get("--constraint", "")))
    found = all_of([one for one in said if one is not None])
    if found is not None and found.is_known:
        return found
    partition = given.get("--partition", "")
    if _is_card(partition):
        return NamedCard(name=partition, said=f"--partition={partition}")
    return found


def _typed(said: str, pattern: re.Pattern[str], value: str) -> NamedCard | None:
    match = pattern.search(value) if pattern is GRES else pattern.fullmatch(value)
    if match is None or match[1].isdecimal():
        return None
    return card_of(match[1], said)


def _is_card(text: str) -> bool:
    rows = meant(text) if text and "," not in text else ()
    return bool(rows) and all(row["kind"] in CARDS for row in rows)


def _constraint(text: str) -> NamedCard | None:
    """The card of features: `a100`, `a100&ib`, `[a100|h100]`; all of what `|` joins must name one.

    A feature that says a size chooses among the cards of the others.
    """
    if not text:
        return None
    said = f"--constraint={text}"
    found = []
    for part in re.sub(r"[][()]", "", text).split("|"):
        words = [re.sub(r"\*\d+$", "", word.strip()) for word in re.split(r"[&,]", part)]
        found.append(all_of([card for word in words if (card := _feature(word, said))]))
    return None if any(one is None for one in found) else one_of([one for one in found if one])


def _feature(word: str, said: str) -> NamedCard | None:
    size = SIZE.fullmatch(word)
    if size and int(size[1]) in SIZES:
        return NamedCard(memory_gb=float(size[1]), said=said)
    return NamedCard(name=word, said=said) if _is_card(word) else None
