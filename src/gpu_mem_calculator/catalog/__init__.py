"""The catalogue of cards, links and preset models, one TOML row each; `hub/` fetches models.

It takes a name and gives a row, or a config.json from a folder, the hub or a bucket. From here on
files and sockets are used. It may import `timing` and what is below.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache

from .kept import read_table
from .own_cards import own_cards

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Row = dict[str, "Any"]
FOLDER = os.path.dirname(__file__)
HEADERS = {"gpus": "gpu", "links": "link", "index": "model"}  # of a table's rows


@cache
def rows(table: str) -> tuple[Row, ...]:
    """Every row of a table: "gpus", "links" or "index"."""
    known = read_table(f"{FOLDER}/{table}.toml")[HEADERS[table]]
    return (*own_cards(), *known) if table == "gpus" else tuple(known)


def names(table: str) -> list[str]:
    """The names of a table's rows, in order, without aliases."""
    return [row["name"] for row in rows(table)]


@cache
def _index(table: str) -> dict[str, Row]:
    """The row of each name, hub id and alias, in lower case; the first where several have it."""
    found: dict[str, Row] = {}
    for row in rows(table):
        for name in (row["name"], row.get("hub_id"), *row.get("aliases", ())):
            if name:
                found.setdefault(name.lower(), row)
    return found


def named(table: str, name: str) -> Row | None:
    """The row of a whole name or alias, in any case."""
    return _index(table).get(name.lower())


@lru_cache(maxsize=256)
def find(table: str, name: str) -> Row | None:
    """The row of a name or alias, in any case; a beginning is enough where only one row has it.

    A beginning does not end within a number: `h20` is not the beginning of `h200`.
    """
    row = named(table, name)
    if row is not None:
        return row
    key = name.lower()
    matches = {id(row): row for known, row in _index(table).items() if _begins(key, known)}
    return next(iter(matches.values())) if len(matches) == 1 else None


def _begins(key: str, known: str) -> bool:
    return known.startswith(key) and known[len(key)] not in "0123456789."


@cache
def preset_config(row_config: str) -> Row:
    """A preset's config.json, by its file name."""
    from msgspec import json

    with open(f"{FOLDER}/models/{row_config}", "rb") as file:
        config: Row = json.decode(file.read())
    return config


def row_config(row: Row) -> Row:
    """A preset's config.json, with the quantization that its weights are published in."""
    config = preset_config(row["config"])
    quantization = row.get("quantization_config")
    return config if quantization is None else {**config, "quantization_config": quantization}
