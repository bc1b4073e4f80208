"""List the cards that have a name, with the memory a process gets on them."""

from __future__ import annotations

import argparse

from .output import show, write
from .parser import Parser, add_output
from .presets import matching

EXAMPLES = """\
examples:
  gpu-mem-calc gpus
  gpu-mem-calc gpus h100
  gpu-mem-calc gpus --format json"""


def arguments(parser: Parser) -> None:
    """The options."""
    parser.add_argument("word", nargs="?", metavar="WORD", help="only names with this word")
    add_output(parser, "table", "list", "json")


def run(args: argparse.Namespace) -> int:
    """List them."""
    rows = matching("gpus", args.word, "gpus")
    if args.format == "json":
        from ..report.data import to_json

        write(to_json(rows), args.output)
    elif args.format == "list":
        write("\n".join(row["name"] for row in rows), args.output)
    else:
        from ..report.columns import columns
        from ..report.lines import gib

        cells = [
            (
                row["name"],
                f"{row['memory_gb']:g}",
                f"{gib(row['memory_bytes'], 2)} GiB" if row["memory_bytes_known"] else "?",
                f"{row['bandwidth_gb_per_s']:,}",
                row["title"].removeprefix("NVIDIA ").removeprefix("GeForce "),
            )
            for row in rows
        ]
        head = ("name", "GB", "usable", "GB/s", "card")
        show(list(columns(head, cells, {1, 2, 3})), args.output)
    return 0
