"""Write a run as a file or a command of another tool.

What the other tool cannot say is listed in comments, or on stderr where a
format has none. A run that it cannot say at all is refused."""

from __future__ import annotations

import argparse
from typing import Any

from ..catalog.variants import variant
from ..runfile.text.errors import InputError
from ..serving import USUAL, server_names
from .export import write_export
from .run_source import run_data


def run(args: argparse.Namespace) -> int:
    """Write the run of the options in the format of --to."""
    from ..tools.writing.writers import find_format

    form = find_format(args.to)
    if args.source is not None and not _is_source(args.source):
        args.preset, args.source = args.source, None
        if not form.trains:
            write_export(args.to, _served(args, form.title), args.output)
            return 0
    write_export(args.to, run_data(args), args.output)
    return 0


def _served(args: argparse.Namespace, title: str) -> dict[str, Any]:
    """The model of the options on the server of --to, with its own defaults."""
    data = run_data(args)
    trained = [name for name in data if name not in ("model", "hardware", "inference")]
    if trained:
        instead = f"leave them out, or use gpu-mem-calc infer {args.preset} --export {args.to}"
        raise InputError(f"{title} serves a model, and the options train one; {instead}")
    server = args.to if args.to in server_names() else USUAL
    return {**data, "inference": {"engine": server, **data.get("inference", {})}}


def _is_source(text: str) -> bool:
    """Whether a text is a file or a command, and not the name of a model."""
    from .main import is_source

    return is_source(text) or variant(text) is None
