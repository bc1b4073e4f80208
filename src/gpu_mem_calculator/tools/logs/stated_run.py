"""The run that a text states: a command in it, or the arguments that a program printed.

Which lines print arguments is `[[started]]` of the tools' `log.toml`:

- `words`: what every such line has, behind which the arguments stand
- `command`: the words of the command that starts the same
- `model`: the names of which the first that stands is the command's first argument
- `keys`: the other names that the command takes, with the option of each
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from ...runfile.text.errors import InputError
from ..read import TEXT_ALONE, Asked, Door, read
from ..reading.tools import UnknownToolError
from .read import BEGIN, Log, tables

PROMPT = re.compile(  # a shell's, or the word with which people begin
    r"^\s*(?:\S{0,60}[$#>%] |[+$#>] ?|(?i:(?:launch |start(?:ing|up)? |my )?(?:command|cmd))\s?: ?"
    r"|(?:启动)?命令(?:是|为)?[:：]? ?)?"
)
STARTS = re.compile(r"(?:[A-Z_][A-Z0-9_]*=\S* )*[a-z./~][\w./~-]* \S")
JOINED = re.compile(r"(?<![ \t])[ \t]*\\\n\s*")
MOST_TRIES = 12  # lines that look like a command and are read as one
MOST_PRINTED = 20_000  # characters of a line of arguments
OPTION = " -"  # what a line that is a command nearly always has
VALUE = r"""\b{name}['"]?[=:] ?(?:'([^'\n]*)'|"([^"\n]*)"|([\w./+-]+))"""


class StatedRun(Struct, frozen=True):
    """The run that a text states, in which line, and what could not be read of it."""

    asked: Asked | None = None
    line: int = 0
    problems: tuple[str, ...] = ()


def stated_run(text: str, log: Log, door: Door = TEXT_ALONE) -> StatedRun:
    """The first command of a text that can be read, else the arguments that a program printed."""
    problems: list[str] = []
    for line, source in (*_commands(text[:BEGIN]), *_printed(text[:BEGIN]), *_loaded(log)):
        try:
            asked = read(source, door)
        except UnknownToolError:
            continue
        except InputError as error:
            if OPTION not in source:  # a line of code, or prose
                continue
            problems += [f"line {line} starts it, and was not read: {error.problems[0]}"]
            continue
        return StatedRun(asked if door.releases is None else asked.at(door.releases.named), line)
    return StatedRun(problems=tuple(problems[:1]))


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """The lines that look like a command, as a shell joins them, with their numbers."""
    lines = JOINED.sub(lambda found: " " + "\0" * found[0].count("\n"), text).split("\n")
    number, tries = 1, 0
    for line in lines:
        if not line:
            number += 1
            continue
        plain = line.replace("\0", "")
        prompt = PROMPT.match(plain)
        plain = plain[prompt.end() if prompt else 0 :].strip().strip("`")
        if STARTS.match(plain) and tries < MOST_TRIES:
            tries += 1
            yield number, plain
        number += 1 + line.count("\0")


def _printed(text: str) -> Iterator[tuple[int, str]]:
    """The commands that mean what programs printed of their arguments."""
    for _, table in tables():
        for row in table.get("started", ()):
            place = text.find(row["words"])
            if place < 0:
                continue
            end = text.find("\n", place)
            printed = text[place : min(end if end > 0 else len(text), place + MOST_PRINTED)]
            command = _command(row, printed)
            if command:
                yield text.count("\n", 0, place) + 1, command


def _command(row: Mapping[str, Any], printed: str) -> str:
    """The command of a line of arguments; empty where it names no model."""
    model = next(filter(None, (_value(name, printed) for name in row["model"])), "")
    options: list[str] = []
    for name, option in row["keys"].items():
        value = _value(name, printed)
        if value == "True":
            options.append(option)
        elif value not in ("", "None", "False"):
            options += [option, value.removeprefix("torch.")]
    return shlex.join([*row["command"], model, *options]) if model else ""


def _value(name: str, printed: str) -> str:
    found = re.search(VALUE.format(name=name), printed)
    return next(filter(None, found.groups()), "") if found else ""


def _loaded(log: Log) -> Iterator[tuple[int, str]]:
    """The models that Ollama and llama.cpp name, with the context that they print."""
    lengths = [line.figures["max_model_len"] for line in log.of("context_length")]
    length = str(int(lengths[0].value)) if lengths and not isinstance(lengths[0], str) else ""
    for line in log.of("served_model"):
        own = line.figures.get("max_model_len")
        context = str(int(own.value)) if own is not None and not isinstance(own, str) else length
        given = f"OLLAMA_CONTEXT_LENGTH={context} " if context else ""
        yield line.line, f"{given}ollama run {line.figures['name']}"
    for line in log.of("model_file"):
        if "file" in line.figures:
            words = ["llama-server", "-m", str(line.figures["file"])]
            yield line.line, shlex.join([*words, *(["-c", length] if length else [])])
