"""msgspec, imported by a command without what it does not need, is all there for who asks."""

from __future__ import annotations

import subprocess
import sys

LEAN = """
import sys
from gpu_mem_calculator.cli.lean_msgspec import import_argparse, import_msgspec
import_msgspec()
import_argparse()
"""
SLOW = ("platform", "textwrap", "typing_extensions", "gettext", "datetime")
ANSWERS = """
import argparse, datetime, msgspec, uuid
print(msgspec.json.decode(b'"2026-01-02T03:04:05Z"', type=datetime.datetime), datetime.MINYEAR)
print(msgspec.json.encode([datetime.date(2026, 1, 2), datetime.timedelta(1)]))
parser = argparse.ArgumentParser(prog="p", exit_on_error=False)
parser.add_argument("--two", nargs=2)
for words in (["--two", "1"], ["--three"], ["--help"]):
    try:
        parser.parse_args(words)
    except (argparse.ArgumentError, SystemExit) as error:
        print(error)
print(msgspec.json.schema(list[int]), msgspec.json.schema_components([int])[0])
print(msgspec.inspect.type_info(dict[str, int]), msgspec.json.encode(uuid.UUID(int=7)))
import msgspec.inspect
from msgspec.inspect import IntType
from msgspec.json import schema
print(IntType, schema(str), msgspec.inspect.is_struct(3), msgspec.inspect.__name__)
"""


def answers(code: str) -> str:
    """What a new process prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout


def test_what_is_imported_later_is_the_same() -> None:
    """Schemas and the inspection of types, for us and for a program of the user."""
    assert answers(LEAN + ANSWERS) == answers(ANSWERS) != ""


def test_what_takes_long_is_not_imported() -> None:
    """Nor is anything left in its place that a program could mistake for it."""
    assert answers(f"{LEAN}print([one for one in {SLOW} if one in sys.modules])") == "[]\n"
    assert answers(f"{LEAN}import platform; print(platform.node() != '')") == "True\n"


def test_msgspec_that_is_imported_already_stays() -> None:
    """A program that has all of it keeps all of it."""
    code = "import msgspec.inspect, platform\nbefore = msgspec.inspect\n"
    code += LEAN + "print(msgspec.inspect is before, sys.modules['msgspec.inspect'] is before)"
    assert answers(code) == "True True\n"
