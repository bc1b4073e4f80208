"""What ends a command: bad input, output that cannot be written, or a fault of this package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from traceback import extract_tb, format_exception

from ..runfile.text.errors import InputError, OutputError, print_to_stderr

FAULT = 70  # EX_SOFTWARE of sysexits.h
TRACEBACK = "GPU_MEM_CALC_TRACEBACK"  # the variable that asks for the traceback


def report_failure(error: BaseException, words: Sequence[str]) -> int:
    """Report what ended a command, in sentences; returns its exit code."""
    problems, code = [fault_sentence(error)], FAULT
    if isinstance(error, InputError):
        problems, code = error.problems, error.exit_code
    try:
        if code == FAULT and os.environ.get(TRACEBACK):
            print_to_stderr(*"".join(format_exception(error)).splitlines(), begins="")
        print_to_stderr(*problems)
        if wants_json(words) and code != OutputError.exit_code:
            from .output import write_problems

            write_problems(problems, code)
    except OutputError as closed:
        with suppress(OutputError):
            print_to_stderr(*closed.problems)
        return closed.exit_code
    return code


def fault_sentence(error: BaseException) -> str:
    """What happened, without the values in it, and how to report it."""
    frames = extract_tb(error.__traceback__)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = [one for one in frames if one.filename.startswith(package)]
    where = f", {os.path.relpath(own[-1].filename, package)} line {own[-1].lineno}" if own else ""
    how = f"with the command and what it prints with {TRACEBACK}=1 in front"
    return (
        f"this is a fault of gpu-mem-calc, not of your input ({type(error).__name__}{where}); "
        f"please report it to the project, {how}"
    )


def wants_json(words: Sequence[str]) -> bool:
    """Whether the words ask for JSON, in which errors are given, too."""
    own = list(words)
    if own[:1] == ["check"]:
        from .check import separated

        own = separated(own[1:])
    if "--" in own:
        own = own[: own.index("--")]
    joined = {"-fjson", "-f=json", "--format=json"}
    pairs = pairwise(own)
    return bool(joined & {*own}) or any(
        name in ("-f", "--format") and value == "json" for name, value in pairs
    )
