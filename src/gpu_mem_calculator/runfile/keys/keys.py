"""The rows of keys.toml, one for each key of a run file, and the defaults that all engines share.

They are read for forms, documents and written files: an estimate needs none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ...catalog.kept import read_table
from ...models.arch.adapters import Adapter
from ...models.families.plain import DEFAULTS as PLAIN
from ...run.run import Run
from ...training.engines import DEFAULT as DEFAULT_ENGINE
from ..resolve.hardware import DEFAULT_MEMORY_GB

LORA = "training.lora"


class KeyRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What keys.toml says of a key; the file explains each word."""

    level: Literal["main", "more", "expert"]
    label: str
    meaning: str
    default: Any = None
    fields: tuple[str, ...] | None = None
    values: str = ""
    open: bool = False
    needs: tuple[str, ...] = ()
    probe: Any = None
    beside: tuple[str, ...] = ()
    no_probe: str = ""
    some_engines: bool = False


@cache
def _data() -> Mapping[str, Mapping[str, Any]]:
    """What keys.toml says of each key."""
    sections = read_table(f"{os.path.dirname(__file__)}/keys.toml")
    return {f"{name}.{key}": row for name, rows in sections.items() for key, row in rows.items()}


@cache
def key_row(path: str) -> KeyRow:
    """The row of a key, as `section.key`."""
    return msgspec.convert(_data()[path], KeyRow)


@cache
def rows() -> Mapping[str, KeyRow]:
    """The row of each key."""
    return {path: key_row(path) for path in _data()}


@cache
def defaults() -> Mapping[str, Any]:
    """The default of each key that has the same in all engines: the row's, else that of `Run`."""
    run = dict(zip(Run.__struct_fields__[::-1], Run.__struct_defaults__[::-1], strict=False))
    homes = {
        **{"model": PLAIN, "training": run, "parallelism": run, "engine": {"type": DEFAULT_ENGINE}},
        "hardware": {"gpu_memory_gb": int(DEFAULT_MEMORY_GB)},
    }
    found: dict[str, Any] = {}
    for path, row in rows().items():
        section, _, key = path.partition(".")
        own = section in homes and row.fields is None and row.default is None
        value = homes[section].get(key) if own else row.default
        if isinstance(value, str | bool | int | float) and value != "":
            found[path] = value
    return found


def run_fields(section: str) -> Iterator[tuple[str, str]]:
    """The keys of a section with each field that they set: of `Run`, or of `Adapter` in LoRA's."""
    known = (Adapter if section == LORA else Run).__struct_fields__
    for path, row in _data().items():
        where, _, key = path.rpartition(".")
        if where == section:
            yield from ((path, name) for name in row.get("fields", (key,)) if name in known)
