"""Check whether a cell of a notebook fits before you run it: its training script in Python, or the
commands that it starts with !.

Reads the cell, and of earlier cells what it uses. Runs nothing without --run.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from ..estimates.checked import Checked, CheckQuestion, asked_readings, check_reading
from ..estimates.fit_verdict import EXIT_CODES, FITS
from ..estimates.several import taken_together, worst_code
from ..runfile.text.errors import InputError
from ..tools.reading.reading import Reading
from ..tools.script.cell import CellText, cell_text, needed
from ..tools.script.pasted import SCRIPT, python_script
from .check import question_of
from .parser import Parser

NAME = "gpu_mem_check"
NOTHING = "the cell trains and serves nothing that is known"
TRACE = "; use gpu-mem-calc trace"  # of a script that cannot be read; a notebook has the model
INSTEAD = "; for a module of your own, estimate_memory(model, batch, optimizer)"


def load_ipython_extension(shell: Any) -> None:
    """Register the magic: `%load_ext gpu_mem_calculator`."""
    shell.register_magic_function(partial(check_cell, shell), "cell", NAME)


def check_cell(shell: Any, line: str, cell: str) -> Checked | None:
    """The answer for a cell; with --run the cell runs where it fits."""
    from IPython.core.error import UsageError
    from IPython.display import display

    try:
        args = _options(line)
        if args is None:
            return None
        checked = answers(cell, args, shell.user_ns)
    except InputError as error:
        raise UsageError("; ".join(error.problems)) from None
    if len(checked) == 1 and not args.run:
        return checked[0]
    display(*checked)
    shared = taken_together(checked)
    for gpu in shared:
        print(gpu.text)
    if args.run and worst_code(checked, shared) == EXIT_CODES[FITS]:
        shell.run_cell(cell)
    elif args.run:
        print("not run, because it is not known to fit")
    return None


def _options(line: str) -> argparse.Namespace | None:
    """The options of the magic; None where they ask for help, which is printed."""
    parser = Parser(prog=f"%%{NAME}", description=__doc__)
    parser.add(NAME, {})
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InputError(f"%%{NAME} {line}: {str(error).lower()}") from None
    try:
        # the commands of a cell run in this environment
        return parser.parse_args(words, argparse.Namespace(launch=[sys.executable]))
    except SystemExit:
        return None


def answers(cell: str, args: argparse.Namespace, names: Mapping[str, Any]) -> list[Checked]:
    """The answer for each training and each server of a cell; `names` are the notebook's."""
    found, question = cell_text(cell, names), question_of(args)
    return [check_reading(one, question) for one in readings(found, question, names)]


def readings(found: CellText, question: CheckQuestion, names: Mapping[str, Any]) -> list[Reading]:
    """What a cell starts; raises where that is nothing, or cannot be read."""
    notes = [f"not read: {one}" for one in found.unread]
    read: list[Reading] = []
    problems: list[str] = []
    before: list[str] = []
    sources = [found.shell] if found.shell.strip() else []
    if found.python:
        before, used = needed(found.python, [*map(str, names.get("In", ()))][:-1])
        if used:
            notes.append(f"earlier cells make {', '.join(used)}, and were read for them")
        script = "\n".join([*before, found.python])
        sources += [script] if python_script(script) else []
    for source in sources:
        try:
            read += asked_readings(f"{source}\n#", question, "")  # a text has two lines
        except InputError as error:  # an unknown tool, too
            problems += error.problems
    if not read:
        raise InputError([_said(one, 0) for one in problems] or [NOTHING])
    lines = len("\n".join(before).splitlines())
    return [_named(one, lines, notes) for one in read]


def _named(one: Reading, lines: int, notes: Sequence[str]) -> Reading:
    """A reading in the words of a cell, below `lines` of earlier cells."""
    limits = [
        replace(limit, key=_said(limit.key, lines), why=_said(limit.why, lines))
        for limit in one.limits
    ]
    assumed = [*(_said(text, lines) for text in one.assumed), *notes]
    return replace(one, limits=limits, assumed=assumed)


def _said(words: str, lines: int) -> str:
    """Words about a script in those of a cell, whose line 1 is that of the magic."""

    def line(found: re.Match[str]) -> str:
        number = int(found[1]) - lines
        return f"line {number + 1} of the cell" if number > 0 else "an earlier cell"

    before, trace, _ = words.partition(TRACE)
    said = re.sub(rf"{re.escape(SCRIPT)}:(\d+)", line, before).replace(SCRIPT, "the cell")
    said = said.replace("the shell script", "the cell")
    return said + (INSTEAD if trace else "")
