"""What the catalogue holds: cards, links and preset models, one TOML row each.

A table is split into rows by its headers, and a row is parsed when it is asked for: looking one
card up does not pay for the other seventy.
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
HERE = Path(__file__).parent
_NAMES = re.compile(r'^(?:name|hub_id) = "(.+)"$|^aliases = \[(.*)\]$', re.MULTILINE)


@cache
def _pieces(table: str) -> tuple[str, ...]:
    """The text of each row of a table."""
    text = (HERE / f"{table}.toml").read_text(encoding="utf-8")
    header = {"gpus": "[[gpu]]", "links": "[[link]]", "index": "[[model]]"}[table]
    return tuple(f"{header}{piece}" for piece in text.split(f"\n{header}")[1:])


@cache
def _index(table: str) -> dict[str, int]:
    """Every name and alias (lower case), and the number of its row."""
    found: dict[str, int] = {}
    for number, piece in enumerate(_pieces(table)):
        for match in _NAMES.finditer(piece):
            names = [match[1]] if match[1] else re.findall(r'"([^"]+)"', match[2])
            for name in names:
                found.setdefault(name.lower(), number)
    return found


@cache
def _row(table: str, number: int) -> Row:
    parsed: dict[str, list[Row]] = tomllib.loads(_pieces(table)[number])
    return next(iter(parsed.values()))[0]


def rows(table: str) -> Iterator[Row]:
    """Every row of a table."""
    for number in range(len(_pieces(table))):
        yield _row(table, number)


def names(table: str) -> list[str]:
    """The names of a table's rows, in order, without aliases."""
    return [str(re.search(r'^name = "(.+)"$', p, re.MULTILINE)[1]) for p in _pieces(table)]  # type: ignore[index]


def find(table: str, name: str) -> Row | None:
    """The row of a name or alias, in any case; a beginning is enough where it is unique."""
    key = name.lower()
    index = _index(table)
    if key in index:
        return _row(table, index[key])
    begins = {number for known, number in index.items() if known.startswith(key)}
    return _row(table, begins.pop()) if len(begins) == 1 else None


def beginning(table: str, name: str) -> list[str]:
    """Names that begin with a text: what an ambiguous name could mean."""
    return [known for known in names(table) if known.startswith(name.lower())]


@cache
def preset_config(row_config: str) -> Row:
    """A preset's config.json."""
    text = (HERE / "models" / row_config).read_text(encoding="utf-8")
    config: Row = json.loads(text)
    return config


def row_config(row: Row) -> Row:
    """A preset's config.json, and the format that its weights are published in."""
    config = preset_config(row["config"])
    own = row.get("quantization_config")
    return config if own is None else {**config, "quantization_config": own}


@lru_cache(maxsize=64)
def having(table: str, key: str, value: str) -> tuple[Row, ...]:
    """The rows with a line `key = value`."""
    line = f"\n{key} = {value}\n"
    return tuple(_row(table, n) for n, piece in enumerate(_pieces(table)) if line in piece)
