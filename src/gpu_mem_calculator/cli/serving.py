"""Shows a server's estimate: as a report, a page or data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..core.calculator import Estimate
from .check import check
from .output import show, write


def serving_answer(
    args: argparse.Namespace,
    estimate: Estimate,
    words: list[str],
    contexts: Sequence[int] = (),
    concurrencies: Sequence[int] = (),
) -> int:
    """Show a server's estimate in the format of the options.

    Returns the exit code: with --check, 1 where it does not fit. `words` are the command line that
    explains the server.
    """
    from ..core.serving_answers import answers
    from ..report.serving import sentence

    if args.quiet:
        return check(args, estimate, sentence(estimate))
    table = answers(estimate, contexts, concurrencies)
    if args.format == "table":
        from ..report.serving import serving_report

        show(list(serving_report(estimate, table, words)), args.output)
    elif args.format == "html":
        from ..report.serving_html import serving_page

        write(serving_page(estimate, table), args.output)
    else:
        from ..report.data import answers_data, to_json, to_yaml

        data = answers_data(estimate.result, table)
        write(to_json(data) if args.format == "json" else to_yaml(data), args.output)
    return check(args, estimate, sentence(estimate)) if args.check else 0
