"""The catalogue of cards, links and preset models, one TOML row each.

A table is split into rows as text, and a row is parsed when it is needed: to look up one card
takes no time for the other seventy.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FOLDER = Path(__file__).parent
_NAMES = re.compile(r'^(?:name|hub_id) = "(.+)"$|^aliases = \[(.*)\]$', re.MULTILINE)


@cache
def _pieces(table: str) -> tuple[str, ...]:
    """The text of each row of a table."""
    text = (FOLDER / f"{table}.toml").read_text(encoding="utf-8")
    header = {"gpus": "[[gpu]]", "links": "[[link]]", "index": "[[model]]"}[table]
    return tuple(f"{header}{piece}" for piece in text.split(f"\n{header}")[1:])


@cache
def _index(table: str) -> dict[str, int]:
    """The number of the row of each name, hub id and alias, in lower case."""
    numbers: dict[str, int] = {}
    for number, piece in enumerate(_pieces(table)):
        for match in _NAMES.finditer(piece):
            names = [match[1]] if match[1] else re.findall(r'"([^"]+)"', match[2])
            for name in names:
                numbers.setdefault(name.lower(), number)
    return numbers


@cache
def _row(table: str, number: int) -> Row:
    parsed: dict[str, list[Row]] = tomllib.loads(_pieces(table)[number])
    return next(iter(parsed.values()))[0]


def rows(table: str) -> Iterator[Row]:
    """Every row of a table: "gpus", "links" or "index"."""
    for number in range(len(_pieces(table))):
        yield _row(table, number)


def names(table: str) -> list[str]:
    """The names of a table's rows, in order, without aliases."""
    return [str(re.search(r'^name = "(.+)"$', p, re.MULTILINE)[1]) for p in _pieces(table)]  # type: ignore[index]


def find(table: str, name: str) -> Row | None:
    """The row of a name or alias, in any case; a prefix is enough where only one row has it."""
    key = name.lower()
    index = _index(table)
    if key in index:
        return _row(table, index[key])
    matches = {number for known, number in index.items() if known.startswith(key)}
    return _row(table, matches.pop()) if len(matches) == 1 else None


def names_with_prefix(table: str, name: str) -> list[str]:
    """The names that begin with a text, for messages about an ambiguous one."""
    return [known for known in names(table) if known.startswith(name.lower())]


@cache
def preset_config(row_config: str) -> Row:
    """A preset's config.json, by its file name."""
    text = (FOLDER / "models" / row_config).read_text(encoding="utf-8")
    config: Row = json.loads(text)
    return config


def row_config(row: Row) -> Row:
    """A preset's config.json, with the quantization that its weights are published in."""
    config = preset_config(row["config"])
    quantization = row.get("quantization_config")
    return config if quantization is None else {**config, "quantization_config": quantization}


@lru_cache(maxsize=64)
def rows_with(table: str, key: str, value: str) -> tuple[Row, ...]:
    """The rows that have the line `key = value`, with the value as TOML writes it."""
    line = f"\n{key} = {value}\n"
    return tuple(_row(table, n) for n, piece in enumerate(_pieces(table)) if line in piece)
