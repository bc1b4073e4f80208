"""Models that share a preset's shapes, and in what their own config.json differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from . import FOLDER, Row
from .kept import read_table
from .model_names import words
from .variants import ENDINGS

SPELLING = ("meta", "hf")  # words of a name that say nothing about the model
Words = tuple[str, ...]


def _plain(name: str) -> Words:
    """The words of a name without its publisher and its weight format."""
    lower = name.lower()
    for ending in (*(ending for ending, *_ in ENDINGS), "-fp8"):
        lower = lower.removesuffix(ending)
    return tuple(word for word in words(lower) if word not in SPELLING)


@cache
def _known() -> dict[Words, Mapping[str, Any]]:
    """What is known to differ, by a name's words; empty where nothing does."""
    table = read_table(f"{FOLDER}/siblings.toml")
    same: dict[Words, Mapping[str, Any]] = {_plain(name): {} for name in table["same"]["names"]}
    return same | {_plain(name): keys for name, keys in table["differs"].items()}


def _is_row(name: str, row: Row) -> bool:
    """Whether a name is one of the preset itself."""
    own = (row["name"], row["title"], row.get("hub_id") or "")
    short = (alias for alias in row.get("aliases", ()) if "/" not in alias)
    return _plain(name) in {_plain(one) for one in (*own, *short)}


def own_config(name: str) -> Mapping[str, Any]:
    """Keys of config.json in which the model of a name differs from the preset that it is found by;
    empty where it does not, or where that is not known.
    """
    return _known().get(_plain(name), {})


def is_known(name: str, row: Row) -> bool:
    """Whether the model's own config.json is known: it is the preset, or a sibling in the table."""
    return _is_row(name, row) or _plain(name) in _known()
