"""Print the run file's JSON Schema, for editors and checks."""

from __future__ import annotations

import argparse

from .output import write


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    from ..report.encode import to_json
    from ..runfile.keys.schema import schema

    write(to_json(schema()), args.output)
    return 0
