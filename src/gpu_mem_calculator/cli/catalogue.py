"""Lists of the catalogue, for `gpus` and `presets`: options, search and the three formats."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from .. import catalog
from ..core.errors import InputError, nearest
from .output import show, write
from .parser import Parser, add_output

NAME_KEYS = ("name", "title", "hub_id", "aliases")  # where a word is looked for


def add_list(parser: Parser) -> None:
    """Add WORD, --format and --output."""
    parser.add_argument("word", nargs="?", metavar="WORD", help="only names with this word")
    add_output(parser, "table", "list", "json")


def matching_rows(table: str, word: str | None, command: str) -> list[catalog.Row]:
    """The rows of a table that have `word` in one of their names; all of them without a word."""
    rows = list(catalog.rows(table))
    if word is None:
        return rows
    names = [" ".join(str(row.get(key, "")) for key in NAME_KEYS).lower() for row in rows]
    matches = [row for row, name in zip(rows, names, strict=True) if word.lower() in name]
    if not matches:
        hint = nearest(word, catalog.names(table)) or f"; see gpu-mem-calc {command}"
        raise InputError(f"no name has {word!r} in it{hint}")
    return matches


def show_rows(
    args: argparse.Namespace,
    data: list[dict[str, Any]],
    head: Sequence[str],
    cells: Sequence[Sequence[str]],
    right: set[int],
) -> int:
    """Show rows as --format asks: `data` as JSON, names, or a table of `cells` under `head`.

    `right` are the columns that are aligned to the right.
    """
    if args.format == "json":
        from ..report.data import to_json

        write(to_json(data), args.output)
    elif args.format == "list":
        write("\n".join(row["name"] for row in data), args.output)
    else:
        from ..report.columns import columns

        show(list(columns(head, cells, right)), args.output)
    return 0
