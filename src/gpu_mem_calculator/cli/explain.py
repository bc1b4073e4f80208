"""Show each entry of an estimate: formula, numbers, when it is alive, source."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..core.errors import InputError
from .output import show, write
from .parser import Parser, add_output, add_run
from .recorded import add_recorded, recorded_source

if TYPE_CHECKING:
    from ..core.calculator import Estimate

EXAMPLES = """\
examples:
  gpu-mem-calc explain --config run.json
  gpu-mem-calc explain --preset llama2-7b --set training.seq_len=2048 --parts
  gpu-mem-calc explain --config run.json --format json"""


def arguments(parser: Parser) -> None:
    """Add the options of `explain`."""
    add_run(parser)
    add_recorded(parser)
    add_parts(parser)
    add_output(parser, "table", "json")


def add_parts(parser: Parser) -> None:
    """Add --parts."""
    parser.flag("--parts", "also what each entry is made of, tensor by tensor")


def run(args: argparse.Namespace) -> int:
    """Estimate the run of the options, and explain it."""
    from .calculate import estimate_source

    return show_explanation(args, estimate_source(recorded_source(args)))


def show_explanation(args: argparse.Namespace, estimate: Estimate) -> int:
    """Run the engine again on symbols, and show each entry's formula with its numbers."""
    from ..core.explain import explain

    explanation = explain(estimate)
    if args.format == "json":
        import msgspec

        from ..report.data import to_json

        write(to_json(msgspec.to_builtins(explanation)), args.output)
    elif args.format == "table":
        from ..report.explanation import explanation_lines

        show(list(explanation_lines(estimate, explanation, show_parts=args.parts)), args.output)
    else:
        raise InputError(f"--explain has no --format {args.format}; choose table or json")
    return 0
