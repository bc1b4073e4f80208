"""The table of what calls and assignments of a script do to memory."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

TABLE = Path(__file__).with_name("rows.toml")
PYTHON = "it is Python's own, and works on the host"


class Row(Struct, frozen=True, kw_only=True):
    """One row: free, or a limit that can take more (`adds`) or less (`saves`)."""

    effect: str
    why: str
    adds: bool = False
    saves: bool = False


@cache
def _rows() -> Mapping[tuple[str, str], Row]:
    found: dict[tuple[str, str], Row] = {}
    data = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    for effect in ("free", "limit"):
        for group in data[effect]:
            facts = {key: group[key] for key in ("adds", "saves") if key in group}
            row = Row(effect=effect, why=group["why"], **facts)
            found |= {(group["on"], name): row for name in group["names"]}
    return found


def row(on: str, name: str) -> Row | None:
    """The row of a name on a kind of object; None where there is none."""
    return _rows().get((on, name))


def is_plain_package(name: str) -> bool:
    """Whether functions of a package touch no memory of a GPU."""
    return name in sys.stdlib_module_names or row("package", name) is not None
