"""Writes a run in another tool's format, for `convert` and --export."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..runfile.text.errors import InputError, print_to_stderr
from ..runfile.text.files import read_text
from ..serving import server_names
from .output import write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..estimates.calculator import Estimate
    from ..tools.writing.written import Written

# Options of an answer, which an export does not have, and their values without effect.
ANSWER = {"format": "table", "long": False, "check": False, "explain": False}


def check_export(args: argparse.Namespace) -> None:
    """Raise for a format that does not exist, and for options of an answer beside --export."""
    from ..tools.writing.writers import find_format

    find_format(args.export)
    for name, value in ANSWER.items():
        if getattr(args, name, value) != value:
            why = f"--export {args.export} writes the run itself, without an answer"
            raise InputError(f"{why}; leave --{name} out")


def export_estimate(args: argparse.Namespace, estimate: Estimate, sentence: str) -> int:
    """Write the run of an estimate in the format of --export, and its verdict to stderr."""
    write_export(args.export, estimate.result.run, args.output)
    engine = estimate.resolved.engine
    if engine.serve is None or args.export not in server_names() or args.export == engine.name:
        print_to_stderr(sentence, begins="")  # it is not about another server
    return 0


def write_export(name: str, data: dict[str, Any], output: str | None) -> None:
    """Write a run in the format of a name to stdout or a file, with the files that it names."""
    from ..runfile.resolve.resolve import resolve
    from ..tools.read import read
    from ..tools.writing.writers import write_run

    file = read(data).file
    written = write_run(name, file, resolve(file, headers=False), output=output)
    folder = os.path.dirname(output or "")
    if output is not None:
        _check_beside(written, folder)
    write(written.text, output)
    for other, text in written.beside.items():
        if output is None:
            print_to_stderr(f"it names {other}, which --output FILE writes beside FILE")
        else:
            write(text, os.path.join(folder, other))
    if not written.commented:
        print_to_stderr(*written.notes, *(f"not in it: {one}" for one in written.unsaid))
    if written.start and (output is not None or not written.commented):
        where = f" (in {folder})" if folder and written.beside else ""
        print_to_stderr(f"start{where}: {written.start}", begins="")


def _check_beside(written: Written, folder: str) -> None:
    """Raise where another file would be replaced that the user did not name."""
    for name, text in written.beside.items():
        path = os.path.join(folder, name)
        if os.path.exists(path) and read_text(path) != text:
            fix = "move it, or choose another folder for --output"
            raise InputError(f"{path} is there already, and would be replaced; {fix}")
