"""Cards of one's own: a file in the format of gpus.toml that GPU_MEM_CALC_GPUS names."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

VARIABLE = "GPU_MEM_CALC_GPUS"
TEXTS = ("name", "title", "vendor", "kind", "architecture", "compute_capability", "link")
SOURCES = ("source", "checked", "memory_bytes_source", "memory_bytes_reading")
NUMBERS = (
    *("memory_gb", "memory_bytes", "driver_total_bytes", "bandwidth_gb_per_s"),
    *("multiprocessors", "domain_gpus"),
)
OTHERS = {"aliases": list, "tflops": dict, "memory_bytes_known": bool}
KEYS = (*TEXTS, *SOURCES, *NUMBERS, *OTHERS)
VENDORS = ("nvidia", "amd", "intel", "google", "apple")
DEFAULTS: Mapping[str, Any] = {
    "vendor": "nvidia",
    "kind": "consumer",
    "architecture": "unknown",
    "bandwidth_gb_per_s": 0,
    "link": "pcie4-x16",
    "source": f"the file of {VARIABLE}",
    "checked": "",
}


class OwnCardsError(ValueError):
    """A file of cards that cannot be used, in one sentence, which `problems` has."""

    @property
    def problems(self) -> list[str]:
        """The sentence, as other errors of users have theirs."""
        return [str(self)]


def own_cards() -> list[dict[str, Any]]:
    """The rows of the user's file, as those of gpus.toml; empty without a file."""
    path = os.environ.get(VARIABLE, "")
    return list(_rows(path)) if path else []


def _rows(path: str) -> Iterator[dict[str, Any]]:
    import tomllib

    where = f"{VARIABLE}={path}"
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise OwnCardsError(f"{where}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise OwnCardsError(f"{where}: not valid TOML, {error}") from None
    cards = data.get("gpu")
    if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
        raise OwnCardsError(f"{where} has no [[gpu]] rows; each needs a name and memory_gb")
    for number, card in enumerate(cards, 1):
        problem = _problem(card)
        if problem:
            raise OwnCardsError(f"{where}: row {number}: {problem}")
        yield _filled(card)


def _problem(card: Mapping[str, Any]) -> str:
    """What is wrong with a row; an empty text where nothing is."""
    for key, value in card.items():
        if key not in KEYS:
            return f"{key} is not a key of a card; known are {', '.join(KEYS)}"
        if key in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            return f"{key}={value!r} must be a number"
        if key in (*TEXTS, *SOURCES) and not isinstance(value, str):
            return f"{key}={value!r} must be a string in quotes"
        if key in OTHERS and not isinstance(value, OTHERS[key]):
            return f"{key}={value!r} must be as in gpus.toml"
    missing = [key for key in ("name", "memory_gb") if not card.get(key)]
    if missing:
        return f"{missing[0]} is missing; add it"
    if card["memory_gb"] < 0 or card.get("memory_bytes", 1) < 1:
        return "its memory must be more than 0"
    if card.get("vendor", VENDORS[0]) not in VENDORS:
        return f"vendor={card['vendor']!r} must be one of {', '.join(VENDORS)}"
    return ""


def _filled(card: Mapping[str, Any]) -> dict[str, Any]:
    """A row with what it leaves out: memory as marketed, no rates."""
    known = "memory_bytes" in card
    return {
        "title": card["name"],
        **DEFAULTS,
        "memory_bytes": int(card["memory_gb"] * 10**9),
        "memory_bytes_known": known,
        "memory_bytes_reading": "process" if known else "marketed",
        "memory_bytes_source": DEFAULTS["source"],
        **card,
    }
