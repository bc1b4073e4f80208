"""Check a run file and name every problem at once."""

from __future__ import annotations

import argparse

from .output import write
from .parser import Parser, add_settings, run_data

EXAMPLES = """\
examples:
  gpu-mem-calc validate run.json
  gpu-mem-calc validate run.json --set parallelism.tensor_parallel_size=4"""


def arguments(parser: Parser) -> None:
    """The options."""
    parser.add_argument("config", metavar="FILE", help="a run file (JSON, YAML or TOML)")
    parser.set_defaults(preset=None)
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Read and resolve it; problems go to stderr, one a line."""
    from ..core.resolve import resolve
    from ..core.runfile import read

    resolve(read(run_data(args)), headers=False)
    write(f"✓ {args.config} is valid")
    return 0
