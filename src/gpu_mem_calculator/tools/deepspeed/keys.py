"""The keys of DeepSpeed's JSON, from the rows of keys.toml, and what may become of each: its rule.

- MemoryKey: it is read.
- MemoryFreeKey: it takes no memory, with the reason.
- FixedKey: only the values at which it changes nothing are accepted; the others are not modelled.
- SwitchedKey: a section of which only the values of its switch that turn it off are accepted.
- RemovedKey: DeepSpeed no longer has it.
- AliasKey: another spelling.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...catalog.kept import read_table
from ...ledger.frameworks import DEEPSPEED
from ..translation.arguments import Values, tables

VERSION = DEEPSPEED.version
COUNT, SIZE, FLAG, NUMBER, OBJECT = "count", "size", "flag", "number", "object"


class MemoryKey(NamedTuple):
    """A key that is read, because it changes memory or how a step runs."""

    kind: str
    words: tuple[Any, ...] = ()  # the allowed values, where they can be listed


class MemoryFreeKey(NamedTuple):
    """A key that takes no memory in a step, and why; `keys`: those of its object, if it is one."""

    why: str
    keys: tuple[str, ...] | None = None


class FixedKey(NamedTuple):
    """A key with the values that are accepted, and why others are not; null is accepted."""

    values: tuple[Any, ...]
    why: str


class SwitchedKey(NamedTuple):
    """A section: the key of its switch, the values at which it has no effect, why not others."""

    switch: str
    values: tuple[Any, ...]
    why: str


class RemovedKey(NamedTuple):
    """A key that DeepSpeed no longer accepts: what was removed, and what to do."""

    what: str
    fix: str = "leave it out"


class AliasKey(NamedTuple):
    """Another spelling of a key."""

    key: str


Rule = MemoryKey | MemoryFreeKey | FixedKey | SwitchedKey | RemovedKey | AliasKey
Table = Mapping[str, "Rule | Table"]

RULES: Mapping[str, Callable[..., Rule]] = {
    "memory": MemoryKey,
    "free": MemoryFreeKey,
    "fixed": FixedKey,
    "switched": SwitchedKey,
    "removed": RemovedKey,
    "alias": AliasKey,
}


def _tables() -> dict[str, Table]:
    """Every table by its name; a section is a table that stands above in the file."""
    tables: dict[str, Table] = {}
    for name, rows in read_table(f"{os.path.dirname(__file__)}/keys.toml").items():
        tables[name] = {
            key: tables[row[0]] if rule == "section" else RULES[rule](*map(_tuple, row))
            for key, (rule, *row) in rows.items()
        }
    return tables


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


TABLES: Mapping[str, Table] = _tables()
TOP = TABLES["top"]
# The only values of these keys that are modelled with device nvme; other devices do not use them.
NVME: Values = tables(__file__)["nvme"]
