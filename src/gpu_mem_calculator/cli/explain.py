"""Show every allocation of an estimate: its formula, numbers, lifetime and source."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..runfile.text.errors import InputError
from .function import recorded_source
from .output import show_answer

if TYPE_CHECKING:
    from ..estimates.calculator import Estimate


def run(args: argparse.Namespace) -> int:
    """Estimate the run of the options, and explain it."""
    from ..estimates.calculator import full_estimate, with_other_cards

    return show_explanation(args, with_other_cards(full_estimate(recorded_source(args))))


def show_explanation(args: argparse.Namespace, estimate: Estimate) -> int:
    """Run the engine again on symbols, and show each entry's formula with its numbers."""
    from ..estimates.explain.explain import explain

    explanation = explain(estimate)
    if args.format not in ("table", "json"):
        raise InputError(f"--explain has no --format {args.format}; choose table or json")
    from msgspec import to_builtins

    from ..report.explanation import explanation_lines

    lines = explanation_lines(estimate, explanation, show_parts=args.parts)
    show_answer(args, lambda: to_builtins(explanation), lines)
    return 0
