"""The card that a hardware section names, and the messages where it names none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ... import catalog
from ..config import GPUConfig
from ..text.errors import InputError

SAME_SIZE = 0.05  # share by which sizes as marketed differ for one card
SXM = "sxm"
MOST_NAMED = 4  # cards in a sentence
MEMORY = "--gpu-mem GB (hardware.gpu_memory_gb)"
_COUNTED = r"(\d{1,4}) ?[x×] ?(\S.*)|(.*\S) ?[x×] ?(\d{1,4})"


def named_card(
    config: GPUConfig, *, fast: bool = False
) -> tuple[catalog.Row, tuple[str, ...]] | None:
    """The row of the card that a section names, and what was assumed; None where it names none.

    Of several the one with the least memory; with `fast`, for answers in seconds, of those on SXM
    where there are any: servers and clusters have them.
    """
    fit = possible_cards(config)
    if not fit:
        return None
    modules = [row for row in fit if fast and SXM in row["name"]]
    row = (modules or fit)[0]
    return row, _assumed(str(config.gpu), row, fit)


def possible_cards(config: GPUConfig) -> list[catalog.Row]:
    """The cards that a section can mean, least memory first; none where it names none."""
    if config.gpu is None:
        return []
    name, size = str(config.gpu), config.gpu_memory_gb
    from ...catalog.cards import meant

    rows = meant(name)
    if not rows:
        raise InputError(_unknown(name))
    fit = [row for row in rows if size is None or _is_size(size, row)]
    if not fit:
        has = f"what a {rows[0]['title']} has, {rows[0]['memory_gb']}"
        raise InputError(f"hardware.gpu_memory_gb={size:g} is not {has}; leave one of the two out")
    return fit


def fast_section(hardware: Mapping[str, Any]) -> dict[str, Any]:
    """A `hardware` section with the name of one card, where its name means several."""
    config = GPUConfig(gpu=hardware.get("gpu"), gpu_memory_gb=hardware.get("gpu_memory_gb"))
    found = named_card(config, fast=True)
    return {**hardware, "gpu": found[0]["name"]} if found and found[1] else dict(hardware)


def _is_size(size: float, row: catalog.Row) -> bool:
    marketed = float(row["memory_gb"])
    return abs(size - marketed) <= SAME_SIZE * marketed


def _assumed(name: str, taken: catalog.Row, rows: Sequence[catalog.Row]) -> tuple[str, ...]:
    """What was assumed where a name means several cards."""
    if len(rows) < 2:
        return ()
    others = _listed([row["name"] for row in rows if row is not taken])
    why = "which has the least memory" if taken is rows[0] else "as in servers"
    return (f"{name!r} taken as {taken['name']}, {why} (also {others})",)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _unknown(name: str) -> str:
    """The message for a name that means no card."""
    import difflib

    from ...catalog.cards import family, find_card, same_number

    key = f"hardware.gpu={name!r}"
    counted = re.fullmatch(_COUNTED, name.strip(), re.IGNORECASE)
    if counted:
        card, count = (counted[2], counted[1]) if counted[1] else (counted[3], counted[4])
        row = find_card(card)
        if row is not None:
            return f"{key} has a number of cards in it; use --gpu {row['name']} --gpus {count}"
    mixed = [find_card(part) for part in re.split(r"[,;+/&]", name)]
    cards = [row for row in mixed if row is not None]
    if len(cards) > 1:
        least = min(cards, key=lambda row: int(row["memory_bytes"]))["name"]
        return f"{key} names several cards, and a run has one kind; use the smallest, {least!r}"
    known = family(name)
    if known:
        choice = f"choose one, such as {_listed(known)}" if len(known) > 1 else f"use {known[0]!r}"
        return f"{key} does not say which card; {choice}, or give {MEMORY}"
    near = [*difflib.get_close_matches(name.lower(), same_number(name), n=1), *same_number(name)]
    use = f"use {near[0]!r}" if near else "see gpu-mem-calc gpus"
    return f"{key} is not a known card; {use}, or give its memory with {MEMORY}"
