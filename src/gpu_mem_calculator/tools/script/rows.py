"""What calls and assignments of a script do to memory: the table, and how each is written down.

A call is honoured, free, a limit, or not understood.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from ...catalog.kept import read_table
from .definitions import ScriptWorld
from .record import FREE, HONOURED, LIMIT, UNCLEAR
from .values import Arguments

TABLE = f"{os.path.dirname(__file__)}/rows.toml"
NOT_UNDERSTOOD = "not understood"


class Row(Struct, frozen=True, kw_only=True):
    """One row: free, or a limit that can take more (`adds`) or less (`saves`)."""

    effect: str
    why: str
    adds: bool = False
    saves: bool = False


@cache
def _rows() -> Mapping[tuple[str, str], Row]:
    found: dict[tuple[str, str], Row] = {}
    data = read_table(TABLE)
    for effect in (FREE, LIMIT):
        for group in data[effect]:
            facts = {key: group[key] for key in ("why", "adds", "saves") if key in group}
            row = Row(effect=effect, **facts)
            found |= {(group["on"], name): row for name in group["names"]}
    return found


def row(on: str, name: str) -> Row | None:
    """The row of a name on a kind of object; None where there is none."""
    return _rows().get((on, name))


def is_plain_package(name: str) -> bool:
    """Whether functions of a package touch no memory of a GPU."""
    return name in sys.stdlib_module_names or row("package", name) is not None


def account(world: ScriptWorld, arguments: Arguments, found: Row | None) -> None:
    """Write down a call by its row; without a row it is not understood."""
    bounds: dict[str, Any] = {"adds": found.adds, "saves": found.saves} if found else {}
    effect, why = (found.effect, found.why) if found else (UNCLEAR, NOT_UNDERSTOOD)
    world.seen(arguments.line, arguments.text, effect, why, more=arguments.more, **bounds)


def honour(world: ScriptWorld, arguments: Arguments, why: str = "") -> None:
    """Write down a call that changes the run that is estimated."""
    world.seen(arguments.line, arguments.text, HONOURED, why, more=arguments.more)


def limit(
    world: ScriptWorld,
    arguments: Arguments,
    why: str,
    *,
    adds: bool | str = True,
    saves: bool | str = True,
) -> None:
    """Write down a call that is known and not modelled."""
    more = arguments.more
    world.seen(arguments.line, arguments.text, LIMIT, why, adds=adds, saves=saves, more=more)
