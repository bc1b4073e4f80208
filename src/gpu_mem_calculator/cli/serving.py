"""Shows a server's estimate: as a report, a page or data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..estimates.calculator import Estimate
from ..estimates.serving.infer_command import InferCommand, infer_command
from ..report.lines import Line
from .fit_check import check
from .output import show_answer, with_holders, write

if TYPE_CHECKING:
    from ..advice.serving.answers import Answers


def serving_answer(
    args: argparse.Namespace,
    estimate: Estimate,
    asked: InferCommand | None = None,
    contexts: Sequence[int] = (),
    concurrencies: Sequence[int] = (),
) -> int:
    """Show a server's estimate in the format of the options.

    Returns the exit code: with --check, 1 where it does not fit. `asked` is the command that asks
    about this server; by default that of its run file.
    """
    from ..advice.one_change import pasted_line
    from ..advice.serving.answers import answers
    from ..report.serving.words import sentence

    if args.quiet:
        return check(args, estimate, sentence(estimate))
    asked = asked or infer_command(estimate.result.run)
    found = answers(estimate, contexts, concurrencies, command=asked)
    if args.format == "html":
        from ..report.serving.html import serving_page

        write(serving_page(estimate, found), args.output)
    else:
        lines = list[Line]()
        if args.format == "table":
            pasted = pasted_line(estimate, found.remedies)
            lines = with_holders(args, serving_text(args, estimate, found, asked), pasted)
        show_answer(args, lambda: _data(estimate, found), lines)
    return check(args, estimate, sentence(estimate)) if args.check else 0


def _data(estimate: Estimate, found: Answers) -> dict[str, Any]:
    from ..report.data import answers_data

    return answers_data(estimate, found)


def serving_text(
    args: argparse.Namespace, estimate: Estimate, found: Answers, asked: InferCommand
) -> list[Line]:
    """The answer on one screen, or with --long the whole report."""
    if args.long:
        from ..report.serving.long import long_report

        return list(long_report(estimate, found, asked))
    from ..report.serving.answer import short_answer

    return short_answer(estimate, found, asked)
