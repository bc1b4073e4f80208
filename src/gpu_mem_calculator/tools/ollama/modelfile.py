"""Parses a Modelfile: instructions such as FROM, PARAMETER and ADAPTER, one for each line.

Ollama fb30760 parser/parser.go.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from ...runfile.text.errors import InputError, nearest
from ..translation.arguments import tables

INSTRUCTIONS = tuple(tables(__file__)["instructions"])
LINE = re.compile(r"[ \t]*([A-Za-z]+)[ \t]+(.*)", re.DOTALL)
QUOTES = '"""'
MOST_LINES = 20_000


class Modelfile(Struct, kw_only=True):
    """The instructions that say something about memory, by their names.

    - `base`: of FROM, without a second FROM, which is a projector or a part of the model
    - `parameters`: the last value of each
    """

    base: str = ""
    more_bases: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    adapters: list[str] = field(default_factory=list)
    drafts: list[str] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)


def is_modelfile(text: str) -> bool:
    """Whether a text is a Modelfile: its first instruction is one that Modelfiles have."""
    for line in text.splitlines()[:200]:
        if line.strip() and not line.lstrip().startswith("#"):
            match = LINE.fullmatch(line)
            return match is not None and match[1].lower() in INSTRUCTIONS and not line.endswith(":")
    return False


def parse_modelfile(text: str, where: str = "Modelfile") -> Modelfile:
    """The instructions of a Modelfile."""
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        raise InputError(f"{where}: it has more than {MOST_LINES:,} lines")
    result, after = Modelfile(), 0
    for index, line in enumerate(lines, 1):
        if index <= after or not line.strip() or line.lstrip().startswith("#"):
            continue
        match = LINE.fullmatch(line)
        name = match[1].lower() if match else line.strip().split()[0]
        if match is None or name not in INSTRUCTIONS:
            hint = nearest(name, INSTRUCTIONS) or f"; use one of {', '.join(INSTRUCTIONS)}"
            raise InputError(f"{where}: line {index}: {name!r} is no instruction{hint}")
        value = match[2].strip()
        first = value.find(QUOTES)
        if first >= 0 and QUOTES not in value[first + 3 :]:
            after = _end_of_quote(lines, index, where)
            value = value[first + 3 :]
        _add(result, name, value, where)
    if not result.base:
        raise InputError(f"{where}: it has no FROM, which names the model")
    return result


def _end_of_quote(lines: list[str], start: int, where: str) -> int:
    """The number of the line after the one that closes a quote."""
    for index in range(start, len(lines)):
        if QUOTES in lines[index]:
            return index + 1
    raise InputError(f"{where}: line {start}: its quotes are not closed")


def _add(result: Modelfile, name: str, value: str, where: str) -> None:
    plain = value.strip('"')
    if name == "from" and result.base:
        result.more_bases.append(plain)
    elif name == "from":
        result.base = plain
    elif name == "adapter":
        result.adapters.append(plain)
    elif name == "draft":
        result.drafts.append(plain)
    elif name == "parameter":
        key, _, text = value.partition(" ")
        if not text.strip():
            raise InputError(f"{where}: PARAMETER {key} has no value")
        result.parameters[key.lower()] = text.strip().strip('"')
    result.instructions.append(name.upper())
