"""The catalogue of cards, links and preset models, one TOML row each; `hub/` fetches models.

It takes a name and gives a row, or a config.json from a folder, the hub or a bucket. From here on
files and sockets are used. It may import `timing` and what is below.

A table is split into rows as text, and a row is parsed when it is needed: to look up one card
takes no time for all the others. Most lines of a row hold a value that JSON writes as TOML does;
the TOML parser is imported for a row that has another.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from msgspec import DecodeError, json

from .own_cards import own_cards

Row = dict[str, Any]
FOLDER = os.path.dirname(__file__)
_TABLE_KEY = re.compile(r"([{,] *)(\w+) =")  # of a table on one line


def read_text(name: str) -> str:
    """The text of a file of the catalogue."""
    with open(f"{FOLDER}/{name}", encoding="utf-8") as file:
        return file.read()


@cache
def _pieces(table: str) -> tuple[str, ...]:
    """The text of each row of a table."""
    text = read_text(f"{table}.toml")
    header = {"gpus": "[[gpu]]", "links": "[[link]]", "index": "[[model]]"}[table]
    pieces = tuple(f"{header}{piece}" for piece in text.split(f"\n{header}")[1:])
    return (*own_cards(), *pieces) if table == "gpus" else pieces


@cache
def _index(table: str) -> dict[str, int]:
    """The number of the row of each name, hub id and alias, in lower case."""
    numbers: dict[str, int] = {}
    for number, piece in enumerate(_pieces(table)):
        for line in piece.split("\n"):
            key, _, value = line.partition(" = ")
            if key in ("name", "hub_id", "aliases"):
                for name in value.split('"')[1::2]:
                    numbers.setdefault(name.lower(), number)
    return numbers


@cache
def _row(table: str, number: int) -> Row:
    piece = _pieces(table)[number]
    try:
        return _plain_row(piece)
    except DecodeError:
        import tomllib

        parsed: dict[str, list[Row]] = tomllib.loads(piece)
        return next(iter(parsed.values()))[0]


def _plain_row(piece: str) -> Row:
    """A row whose values are texts, numbers, flags, lists and tables of them, one line each, which
    JSON writes as TOML does, but for a table's keys; DecodeError where one is not.
    """
    row: Row = {}
    for line in piece.split("\n")[1:]:
        if line and not line.startswith("#"):
            key, _, value = line.partition(" = ")
            row[key] = json.decode(_TABLE_KEY.sub(r'\1"\2":', value) if value[0] == "{" else value)
    return row


def rows(table: str) -> Iterator[Row]:
    """Every row of a table: "gpus", "links" or "index"."""
    for number in range(len(_pieces(table))):
        yield _row(table, number)


def names(table: str) -> list[str]:
    """The names of a table's rows, in order, without aliases."""
    return [str(re.search(r'^name = "(.+)"$', p, re.MULTILINE)[1]) for p in _pieces(table)]  # type: ignore[index]


def named(table: str, name: str) -> Row | None:
    """The row of a whole name or alias, in any case."""
    number = _index(table).get(name.lower())
    return None if number is None else _row(table, number)


def find(table: str, name: str) -> Row | None:
    """The row of a name or alias, in any case; a beginning is enough where only one row has it.

    A beginning does not end within a number: `h20` is not the beginning of `h200`.
    """
    row = named(table, name)
    if row is not None:
        return row
    key = name.lower()
    matches = {number for known, number in _index(table).items() if _begins(key, known)}
    return _row(table, matches.pop()) if len(matches) == 1 else None


def _begins(key: str, known: str) -> bool:
    return known.startswith(key) and known[len(key)] not in "0123456789."


@cache
def preset_config(row_config: str) -> Row:
    """A preset's config.json, by its file name."""
    config: Row = json.decode(read_text(f"models/{row_config}"))
    return config


def row_config(row: Row) -> Row:
    """A preset's config.json, with the quantization that its weights are published in."""
    config = preset_config(row["config"])
    quantization = row.get("quantization_config")
    return config if quantization is None else {**config, "quantization_config": quantization}


@cache
def _lower_pieces(table: str) -> tuple[str, ...]:
    return tuple(map(str.lower, _pieces(table)))


def rows_with_texts(table: str, *texts: str) -> Iterator[Row]:
    """The rows whose text in lower case contains all of some texts."""
    for number, piece in enumerate(_lower_pieces(table)):
        if all(text in piece for text in texts):
            yield _row(table, number)


@lru_cache(maxsize=64)
def rows_with(table: str, key: str, value: str) -> tuple[Row, ...]:
    """The rows that have the line `key = value`, with the value as TOML writes it."""
    line = f"\n{key} = {value}\n"
    return tuple(_row(table, n) for n, piece in enumerate(_pieces(table)) if line in piece)
