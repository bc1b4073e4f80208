"""The rows of what is read: `[[line]]` of the tools' `log.toml` and of the files here.

- `what`: one word for what a line says; several rows can have the same, one for each wording
- `words`: what every such line has, by which it is found
- `pattern`: a regular expression in which `{name:kind}` stands for a figure. A space is any white
  space. Kinds: `size` (a number with its unit), `gib`, `mib`, `bytes` (a size whose unit is not
  printed), `count`, `number`, `word`, `text`
- `more`: patterns that are looked for behind the first, each of which may be missing
- `reach`: how many characters a line may have, with those that follow it; 0: its end
- `anywhere`: it is looked for also in the middle of a long text
- `decimal`: GB is 1,000,000,000 bytes
- `source`: the file and release that print it
- `examples`: lines as they are printed, with their figures as they are printed, by name
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from ...catalog.kept import read_table
from ..rows import FOLDER
from .figure import Figure, number, size

FILE = "log.toml"
HERE = os.path.dirname(__file__)
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:[kKMGT]i?B?|[bB]ytes|B)(?![A-Za-z])"
KINDS = {
    "size": rf"(?P<NAME>{NUMBER})\s*(?P<NAME_unit>{UNIT})",
    **dict.fromkeys(("gib", "mib", "bytes", "number"), rf"(?P<NAME>{NUMBER})"),
    "count": r"(?P<NAME>-?\d[\d,]*)",
    "word": r"(?P<NAME>[^\s,;()\[\]'\"]+)",
    "text": r"(?P<NAME>[^\n]+?)",
}
PRINTED_IN = {"gib": "GiB", "mib": "MiB", "bytes": "B"}
SIZES = ("size", *PRINTED_IN)
HOLE = re.compile(r"\{(\w+):(\w+)\}")


class Pattern(Struct, frozen=True):
    """A compiled pattern, and the kind of each of its figures."""

    compiled: re.Pattern[str]
    kinds: Mapping[str, str]
    decimal: bool

    def figures(self, found: re.Match[str]) -> dict[str, Figure | str]:
        """The figures of a match, a size under a name that ends in `_bytes`."""
        figures: dict[str, Figure | str] = {}
        for name, kind in self.kinds.items():
            printed = found[name]
            if printed is None:
                continue
            if kind in SIZES:
                unit = PRINTED_IN.get(kind) or found[f"{name}_unit"]
                figures[f"{name}_bytes"] = size(printed, unit, decimal=self.decimal)
            else:
                figures[name] = printed.strip() if kind in ("word", "text") else number(printed)
        return figures


class Row(Struct, frozen=True):
    """What one line is recognised by."""

    tool: str
    what: str
    words: str
    pattern: Pattern
    more: tuple[Pattern, ...]
    reach: int
    anywhere: bool


def _pattern(text: str, *, decimal: bool) -> Pattern:
    kinds: dict[str, str] = {}

    def hole(found: re.Match[str]) -> str:
        name, kind = found.groups()
        kinds[name] = kind
        return KINDS[kind].replace("NAME", name)

    return Pattern(re.compile(HOLE.sub(hole, text.replace(" ", r"\s+"))), kinds, decimal)


def tables() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each table with the name of its tool: its folder's, or that of the file here."""
    for folder in sorted(os.listdir(FOLDER)):
        path = os.path.join(FOLDER, folder, FILE)
        if os.path.isfile(path):
            yield folder, read_table(path)
    for name in sorted(os.listdir(HERE)):
        if name.endswith(".toml"):
            yield name.removesuffix(".toml"), read_table(os.path.join(HERE, name))


@cache
def rows() -> tuple[Row, ...]:
    """All rows."""
    return tuple(_row(tool, row) for tool, table in tables() for row in table["line"])


def _row(tool: str, row: Mapping[str, Any]) -> Row:
    decimal = row.get("decimal", False)
    return Row(
        tool=tool,
        what=row["what"],
        words=row["words"],
        pattern=_pattern(row["pattern"], decimal=decimal),
        more=tuple(_pattern(one, decimal=decimal) for one in row.get("more", ())),
        reach=row.get("reach", 0),
        anywhere=row.get("anywhere", False),
    )
