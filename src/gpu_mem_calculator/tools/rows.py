"""One registry: the row of each tool is the `tool.toml` of its folder, and is found by itself.

- `[read]`: how its commands and files are recognised (`Format` in reading/tools.py)
- `[translate.NAME]`: a program by its name in `program.tool` (`Tool` in translation/tools.py)
- `[refused]`: programs that were read and cannot be answered: why, and which set-up can
- `[write.NAME]`: a format by its name in `convert --to` (`OutputFormat` in writing/writers.py)

`place` orders the rows of one kind, of which the first that fits is taken; those without one have
the place LAST, and stand by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..catalog.kept import read_table

FOLDER = os.path.dirname(__file__)
FILE = "tool.toml"
READ, TRANSLATE, REFUSED, WRITE = "read", "translate", "refused", "write"
LAST = 1000
Row = Mapping[str, Any]


@cache
def tool_files() -> Mapping[str, Mapping[str, Any]]:
    """The data of each folder's file, by the folder's name."""
    paths = {name: os.path.join(FOLDER, name, FILE) for name in sorted(os.listdir(FOLDER))}
    return {name: read_table(path) for name, path in paths.items() if os.path.isfile(path)}


def tool_rows(kind: str) -> dict[str, Row]:
    """The rows of a kind: of READ by folder, of others by their own name."""
    found: list[tuple[str, Row]] = []
    for folder, data in tool_files().items():
        if kind in data:
            found += [(folder, data[kind])] if kind == READ else data[kind].items()
    found.sort(key=lambda one: (one[1].get("place", LAST), one[0]))
    return {name: {key: v for key, v in row.items() if key != "place"} for name, row in found}


def refused_programs() -> dict[str, str]:
    """Why each program cannot be answered that was read."""
    sections = (data.get(REFUSED, {}) for data in tool_files().values())
    return {name: why for section in sections for name, why in section.items()}
