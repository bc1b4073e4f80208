"""Write a run as a file or a command of another tool.

What the other tool cannot say is listed in comments, or on stderr where a
format has none. A run that it cannot say at all is refused."""

from __future__ import annotations

import argparse

from ..catalog.variants import variant
from ..runfile.text.errors import InputError
from ..tools.read import is_command
from .export import write_export
from .run_source import run_data


def run(args: argparse.Namespace) -> int:
    """Write the run of the options in the format of --to."""
    from ..tools.writing.writers import find_format

    form = find_format(args.to)
    if args.source is not None and not _is_source(args.source):
        if not form.trains:
            instead = f"use gpu-mem-calc infer {args.source} --export {args.to}"
            raise InputError(f"{form.title} serves a model; {instead}")
        args.preset, args.source = args.source, None
    write_export(args.to, run_data(args), args.output)
    return 0


def _is_source(text: str) -> bool:
    """Whether a text is a file or a command, and not the name of a model."""
    from .main import is_run_file

    return is_run_file(text) or is_command(text) or variant(text) is None
