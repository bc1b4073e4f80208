"""The arguments of each tool: its defaults, and which of them change memory.

Each `arguments.toml` (or `<class>.toml`) has every argument of the tool's own dataclass:

- `release`: the one that is modelled. The tool's defaults are those of the lock beside the table at
  it, or of the table that `lock` names; releases.py reads it. Of an argument that this release does
  not have, the last default before it counts, or the first after it.
- `[defaults]`: those that a person decided, where only runs can tell them, or another one is
  modelled; without `release`, all of the tool. An argument that has none has None.
- `none`: names that have None, where the lock states a default that holds under a plugin alone, or
  code asks whether the argument was given.
- `[memory]`: `names` of arguments that the translation honours; values of those in `loose` may have
  another type than the default.
- `[[free]]`: `names` that have no effect on GPU memory, and `why`, with the line that shows it.
- `[[refused]]`: `names` of which only the default is modelled, and `why`, the end of the sentence;
  `could` says whether a run with another value takes "less" or "more" than one with the default,
  `adds` and `saves` how much at most, as in `run.limits`.
- `[options]`: how they are written on a command line: `flags` have no value, `switches` may have
  one, `lists` have several; `aliases` are other names. The rest has one value.
- `[renamed]`: names of other releases, each with what it is called at the one that is modelled.
- A `*` in one of the `names` stands for any part: for the names of the lock that match and have no
  row of their own. Where several match, the longest wins.
- `base`: the table whose arguments the tool inherits; rows here replace those of the base.
"""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...catalog.kept import read_table
from ...ledger.quoting import quoted
from ...run.limits import Bound, Could, Limit
from . import releases
from .kinds import NUMBER, WHOLE, converts, kind_of

FOLDER = releases.FOLDER  # its folders have the tables
MEMORY, FREE, REFUSED = "memory", "free", "refused"
ANY, LAST = "*", sys.maxsize  # in names, and the place of those that have none
OFF: tuple[Any, ...] = (None, False, "no", [], "")  # defaults that turn something off


class Argument(Struct, frozen=True, kw_only=True):
    """One argument: its default, its effect (memory, free or refused), and why."""

    default: Any
    effect: str
    type: str = ""  # what it takes, as `Stated` has it; empty where no lock is read
    why: str = ""
    could: Could = "either"
    adds: Bound = None
    saves: Bound = None
    loose: bool = False  # its values may have another type than its default

    def limit(self, key: str, value: Any) -> Limit:
        """That a value of this argument is not modelled; `key` is as the user wrote it."""
        facts = {"why": self.why, "could": self.could, "adds": self.adds, "saves": self.saves}
        return Limit(key=f"{key}={quoted(value)}", **facts)  # type: ignore[arg-type]


ArgumentTable = Mapping[str, Argument]
Values = Mapping[str, Any]  # of arguments, by their names


@cache
def argument_data(path: str, folder: Path = FOLDER) -> Mapping[str, Any]:
    """The data of a table; `path` is that of its file in the folder, without .toml."""
    found: Mapping[str, Any] = read_table(f"{folder}/{path}.toml")
    return found


def tables(module: str) -> Mapping[str, Any]:
    """The tables of a module, by its `__file__`: those that `tables.toml` beside it has for it."""
    path = Path(module)
    found: Mapping[str, Any] = argument_data("tables", path.parent)[path.stem]
    return found


@cache
def argument_table(path: str, folder: Path = FOLDER) -> ArgumentTable:
    """The arguments of a tool; `path` is that of its table in the folder, without .toml."""
    data = argument_data(path, folder)
    base = argument_table(data["base"], folder) if "base" in data else {}
    stated, rows = _stated(path, data, base, folder), dict(base)
    inherited = {name: (row.default, row.type) for name, row in base.items()}
    for name, row in _rows(data, {**inherited, **stated} if "release" in data else stated):
        rows[name] = row
    for name in stated.keys() & base.keys():  # the tool changes a default of its base
        if rows[name] is base[name]:
            default, type_ = stated[name]
            rows[name] = replace(base[name], default=default, type=type_)
    return rows


def renamed(path: str, folder: Path = FOLDER) -> Mapping[str, str]:
    """Names of older releases, each with what it is called now, where a person has said so."""
    data = argument_data(path, folder)
    base = renamed(data["base"], folder) if "base" in data else {}
    return {**base, **data.get("renamed", {})}


Stated = Mapping[str, tuple[Any, str]]  # the default and the type of each argument


def _stated(path: str, data: Mapping[str, Any], base: ArgumentTable, folder: Path) -> Stated:
    """What the lock states at a table's release, with the defaults that a person decided."""
    decided: Mapping[str, Any] = {**data.get("defaults", {}), **dict.fromkeys(data.get("none", ()))}
    if "release" not in data:
        return {name: (default, "") for name, default in decided.items()}
    lock, place = (data["lock"], FOLDER) if "lock" in data else (path, folder)
    stated = releases.stated_at(lock, data["release"], base, place)
    types = {name: stated[name][1] if name in stated else "" for name in decided}
    return {**stated, **{name: (default, types[name]) for name, default in decided.items()}}


def _rows(data: Mapping[str, Any], stated: Stated) -> Iterator[tuple[str, Argument]]:
    rows = [(MEMORY, data.get(MEMORY, {}))]
    rows += ((effect, row) for effect in (FREE, REFUSED) for row in data.get(effect, ()))
    named = [(name, effect, row) for effect, row in rows for name in row.get("names", ())]
    named.sort(key=lambda one: len(one[0]) if ANY in one[0] else LAST)
    for given, effect, row in named:
        facts = {key: row[key] for key in ("why", "could", "adds", "saves") if key in row}
        for name in fnmatch.filter(stated, given) if ANY in given else [given]:
            default, type_ = stated.get(name, (None, ""))
            loose = name in row.get("loose", ())
            facts |= {"default": default, "type": type_, "loose": loose}
            yield name, Argument(effect=effect, **facts)


def flat_arguments(
    table: ArgumentTable, given: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """The given arguments by their full names: sections of a file are joined with dots."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in table and _is_section(table, name):
            flat |= flat_arguments(table, value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _is_section(table: ArgumentTable, name: str) -> bool:
    return any(one.startswith(f"{name}.") for one in table)


def argument_values(table: ArgumentTable, given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every argument: as given, else the tool's default."""
    return {name: given.get(name, row.default) for name, row in table.items()}


def argument_problems(title: str, table: ArgumentTable, given: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each argument that the tool does not have, or whose value is refused."""
    for name, value in given.items():
        row = table.get(name)
        if row is None:
            from difflib import get_close_matches

            hint = get_close_matches(str(name), table, n=1, cutoff=0.75)
            near = f"; did you mean {hint[0]!r}?" if hint else "; leave it out"
            yield f"program.args.{name} is not an argument of {title}{near}"
        elif row.effect == REFUSED and value != row.default:
            yield f"program.args.{name}={quoted(value)}: {row.why}"
        elif row.effect == MEMORY and not row.loose:
            kind = kind_of(name, row.type, row.default)
            if not converts(kind, value):
                rule = NUMBER if kind == WHOLE else kind
                yield f"program.args.{name}={quoted(value)} must be {rule}"


def filled(**parts: Any) -> dict[str, Any]:
    """The keys that have a value: neither None, nor off, nor empty."""
    return {key: value for key, value in parts.items() if value}


def assumed_defaults(title: str, table: ArgumentTable, given: Mapping[str, Any]) -> str:
    """One sentence with the tool's defaults of the arguments that change memory."""
    left_out = [
        f"{name}={_word(row.default)}"
        for name, row in table.items()
        if row.effect == MEMORY and name not in given and row.default not in OFF
    ]
    return f"{title}'s defaults: {', '.join(left_out)}" if left_out else ""


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
