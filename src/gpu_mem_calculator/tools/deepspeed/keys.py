"""The tables of the keys of DeepSpeed's JSON, from the rows of keys.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..translation.arguments import tables
from .rules import (
    AliasKey,
    FixedKey,
    MemoryFreeKey,
    MemoryKey,
    RemovedKey,
    Rule,
    SwitchedKey,
    Table,
)

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
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    tables: dict[str, Table] = {}
    for name, rows in tomllib.loads(text).items():
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
NVME: Mapping[str, Any] = tables(__file__)["nvme"]
