"""--check: whether a run fits, as a sentence and an exit code; and --save-run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..estimates.calculator import Estimate
from ..estimates.fit_verdict import EXIT_CODES, FITS, SHORT
from ..ledger.units import GIB
from ..runfile.text.errors import InputError, print_to_stderr
from .output import write

if TYPE_CHECKING:
    from .values import Margin


def check_options(args: argparse.Namespace) -> None:
    """Raise for options of --check without it."""
    for name in ("margin", "quiet"):
        if getattr(args, name, None) and not args.check:
            raise InputError(f"--{name} is for --check; add --check, or leave --{name} out")


def check(args: argparse.Namespace, estimate: Estimate, sentence: str) -> int:
    """Print the sentence of --check; returns 0 where the run fits with its margin, 1 where it does
    not, 3 where that cannot be told.
    """
    code, text = _with_margin(args.margin, estimate, sentence)
    if args.format == "table" or args.output or args.quiet:
        write(text)
    else:  # stdout has only the data
        print_to_stderr(text, begins="")
    return code


def _with_margin(margin: Margin | None, estimate: Estimate, sentence: str) -> tuple[int, str]:
    """The exit code of a run with a margin, and the sentence for it."""
    result = estimate.result
    if margin is None or not result.fits_on_gpu:
        return EXIT_CODES[result.verdict], sentence
    amount, unit = margin
    wanted = amount / 100 * result.gpu_memory_bytes if unit == "%" else amount * GIB
    if result.headroom_bytes >= wanted:
        return EXIT_CODES[FITS], sentence
    free = f"{max(0, result.headroom_bytes) / GIB:.1f} GiB free"
    asks = f"--margin asks for {wanted / GIB:.1f} GiB"
    return EXIT_CODES[SHORT], f"The margin is too small: {free}, and {asks}."


def save_run(args: argparse.Namespace, estimate: Estimate) -> None:
    """Write the run of an estimate as a run file, where --save-run names one."""
    if args.save_run:
        import json

        text = json.dumps(estimate.result.run, indent=2)
        write(text, args.save_run, "--save-run")
