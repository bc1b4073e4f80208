"""Measured speed of cards: JSON files in `curves/` by kind and by the card's name in the catalogue.

Each file states its card, versions, date, source, licence and error. `maintenance/curves` writes
those of
matrix products, attention and collectives.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from msgspec import json

FOLDER = f"{os.path.dirname(__file__)}/curves"


@cache
def cards(kind: str) -> tuple[str, ...]:
    """The names of the cards that have a curve of a kind, sorted."""
    files = os.listdir(f"{FOLDER}/{kind}")
    return tuple(sorted(f.removesuffix(".json") for f in files if f.endswith(".json")))


@cache
def curve(kind: str, card: str) -> dict[str, Any]:
    """The curve of a kind that was measured on a card."""
    with open(f"{FOLDER}/{kind}/{card}.json", "rb") as file:
        decoded: dict[str, Any] = json.decode(file.read())
    return decoded
