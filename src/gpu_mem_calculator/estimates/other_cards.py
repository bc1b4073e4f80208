"""The cards that a short name can mean: which is shown, and the answer for each that turns the
verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from .. import catalog
from ..runfile.config import GPUConfig
from ..runfile.resolve.card_name import possible_cards
from ..runfile.resolve.hardware import Hardware
from ..runfile.text.errors import InputError
from .fit_verdict import FITS, WORDS
from .result import MemoryResult, OtherCard
from .summary import short_card, summary

Verdict = Callable[[Mapping[str, Any]], str]
MOST_SIZES = 4


def with_cards(result: MemoryResult, hardware: Hardware, verdict: Verdict) -> MemoryResult:
    """A result with the verdict on other cards of its name, where it is another; where the name
    means several sizes, which is shown.

    A run that fits can only fail on a card with less memory, any other one only fit on one with
    more: the others are not estimated. Of cards with the same size the smallest counts.
    """
    found = [one for row in _others(result, hardware) if (one := _answer(result, row, verdict))]
    turned = [one for one in found if one.verdict != result.verdict]
    shown = short_card(hardware.title)
    if not turned:
        if _sizes(result) < 2:
            return result
        return replace(result, decisive=[shown, *result.decisive])
    words = "; ".join(f"{short_card(one.title)}: {WORDS[one.verdict]}" for one in turned)
    shown = f"{shown} ({words})"
    result = replace(result, other_cards=turned, decisive=[shown, *result.decisive])
    return replace(result, summary=summary(result))


def _meant(result: MemoryResult) -> list[catalog.Row]:
    """The cards that the run's name of its card can mean."""
    section = result.run.get("hardware") or {}
    if section.get("gpu") is None or "gpu_memory_bytes" in section:
        return []
    return possible_cards(GPUConfig(gpu=section["gpu"], gpu_memory_gb=section.get("gpu_memory_gb")))


def _sizes(result: MemoryResult) -> int:
    """The number of memory sizes that they have."""
    return len({row["memory_gb"] for row in _meant(result)})


def _others(result: MemoryResult, hardware: Hardware) -> list[catalog.Row]:
    """The smallest card of each other size that could turn the verdict."""
    rows, has = _meant(result), hardware.card_bytes
    shown = [row["memory_gb"] for row in rows if row["memory_bytes"] == has]
    sizes: dict[float, catalog.Row] = {}
    for row in rows:
        size = int(row["memory_bytes"])
        turns = size < has if result.verdict == FITS else size > has
        if turns and row["memory_gb"] not in shown:
            sizes.setdefault(row["memory_gb"], row)
    return list(sizes.values())[:MOST_SIZES]


def _answer(result: MemoryResult, row: catalog.Row, verdict: Verdict) -> OtherCard | None:
    """The verdict on another card; None where the run is refused on it."""
    run = result.run
    try:
        word = verdict({**run, "hardware": {**run["hardware"], "gpu": row["name"]}})
    except InputError:
        return None
    size = float(row["memory_gb"])
    return OtherCard(gpu=row["name"], title=row["title"], memory_gb=size, verdict=word)
