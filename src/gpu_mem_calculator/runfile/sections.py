"""The sections of a run file, and the types of their keys."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec import Struct

from .config import EngineConfig, GPUConfig, ModelConfig, ParallelismConfig, TrainingConfig
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
