"""Show every allocation of an estimate: its formula, numbers, lifetime and source."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..runfile.text.errors import InputError
from .output import show, write
from .recorded import recorded_source

if TYPE_CHECKING:
    from ..estimates.calculator import Estimate


def run(args: argparse.Namespace) -> int:
    """Estimate the run of the options, and explain it."""
    from .calculate import estimate_source

    return show_explanation(args, estimate_source(recorded_source(args)))


def show_explanation(args: argparse.Namespace, estimate: Estimate) -> int:
    """Run the engine again on symbols, and show each entry's formula with its numbers."""
    from ..estimates.explain.explain import explain

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
