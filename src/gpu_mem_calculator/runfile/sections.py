"""The sections of a run file, the types of their keys, and the tables whose row names are values of
keys: a table is imported when its names are asked.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from .config import EngineConfig, GPUConfig, ModelConfig, ParallelismConfig, TrainingConfig
from .field_types import RowName
from .inference_config import InferenceConfig

SECTIONS: dict[str, type[Struct]] = {
    "model": ModelConfig,
    "training": TrainingConfig,
    "parallelism": ParallelismConfig,
    "engine": EngineConfig,
    "inference": InferenceConfig,
    "hardware": GPUConfig,
}


@cache
def key_types(kind: type[Struct]) -> dict[str, Any]:
    """The keys of a section with their types."""
    return typing.get_type_hints(kind, include_extras=True)


def parts(kind: Any) -> Iterable[Any]:
    """The members of a union without `None`; the type itself where it is not a union."""
    origin = typing.get_origin(kind)
    if origin is typing.Union or type(kind).__name__ == "UnionType":
        return [p for a in typing.get_args(kind) for p in parts(a) if p is not type(None)]
    return [kind]


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
