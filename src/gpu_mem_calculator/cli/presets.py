"""List the models that are known by name, or those whose name contains WORD."""

from __future__ import annotations

import argparse

from ..report.lines import count
from .catalogue import add_list, matching_rows, show_rows
from .parser import Parser

EXAMPLES = """\
examples:
  gpu-mem-calc presets
  gpu-mem-calc presets llama3
  gpu-mem-calc presets --format json"""
KEYS = ("name", "title", "hub_id", "aliases", "num_parameters", "source")  # shown as JSON
HEAD = ("name", "size", "hub id")


def arguments(parser: Parser) -> None:
    """Add the options of `presets`."""
    add_list(parser)


def run(args: argparse.Namespace) -> int:
    """List the presets."""
    rows = matching_rows("index", args.word, "presets")
    data = [{key: row[key] for key in KEYS if key in row} for row in rows]
    cells = [(row["name"], count(row["num_parameters"]), row.get("hub_id", "")) for row in rows]
    return show_rows(args, data, HEAD, cells, {1})
