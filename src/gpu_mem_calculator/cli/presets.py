"""List the models that have a name, or those with a word in their name."""

from __future__ import annotations

import argparse

from .. import catalog
from ..core.errors import InputError, nearest
from .output import show, write
from .parser import Parser, add_output

EXAMPLES = """\
examples:
  gpu-mem-calc presets
  gpu-mem-calc presets llama3
  gpu-mem-calc presets --format json"""


def arguments(parser: Parser) -> None:
    """The options."""
    parser.add_argument("word", nargs="?", metavar="WORD", help="only names with this word")
    add_output(parser, "table", "list", "json")


def matching(table: str, word: str | None, command: str) -> list[catalog.Row]:
    """The rows of a table with a word in one of their names."""
    rows = list(catalog.rows(table))
    if word is not None:
        keys = ("name", "title", "hub_id", "aliases")
        names = [" ".join(str(row.get(key, "")) for key in keys).lower() for row in rows]
        rows = [row for row, name in zip(rows, names, strict=True) if word.lower() in name]
        if not rows:
            hint = nearest(word, catalog.names(table)) or f"; see gpu-mem-calc {command}"
            raise InputError([f"no name has {word!r} in it{hint}"])
    return rows


def run(args: argparse.Namespace) -> int:
    """List them."""
    from ..report.data import to_json

    rows = matching("index", args.word, "presets")
    if args.format == "json":
        keys = ("name", "title", "hub_id", "aliases", "num_parameters", "source")
        write(to_json([{k: row[k] for k in keys if k in row} for row in rows]), args.output)
    elif args.format == "list":
        write("\n".join(row["name"] for row in rows), args.output)
    else:
        from ..report.columns import columns
        from ..report.lines import count

        cells = [(r["name"], count(r["num_parameters"]), r.get("hub_id", "")) for r in rows]
        show(list(columns(("name", "size", "hub id"), cells, {1})), args.output)
    return 0
