"""Print the run file's JSON Schema, for editors and checks."""

from __future__ import annotations

import argparse

from .output import write
from .parser import Parser


def arguments(parser: Parser) -> None:
    """Add --output."""
    parser.option("-o --output", "FILE", "write the schema to a file")


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    from ..report.data import to_json
    from ..runfile.keys.schema import schema

    write(to_json(schema()), args.output)
    return 0
