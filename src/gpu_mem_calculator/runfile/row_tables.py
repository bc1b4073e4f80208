"""The tables whose row names are values of keys; a table is imported when its names are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .field_types import RowName
from .sections import parts


def _losses() -> Iterable[str]:
    from ..training.losses import LOSSES

    return LOSSES


# By the name that a key's type (`RowName`) gives.
TABLES: Mapping[str, Callable[[], Iterable[str]]] = {"losses": _losses}


def row_names(kind: Any) -> tuple[str, ...]:
    """The names that a type allows because rows have them; empty where it names no table."""
    metas = (meta for part in parts(kind) for meta in getattr(part, "__metadata__", ()))
    tables = [meta.table for meta in metas if isinstance(meta, RowName)]
    return tuple(name for table in tables for name in TABLES[table]())
