"""How a model's weights are stored: by format name, by `quantization_config`, or as GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from .recipes import ALSO, BLOCKED, FP8_BLOCK, RECIPES, FormatError
from .scheme import WeightFormat

__all__ = ["FormatError", "WeightFormat", "find_format"]


def find_format(
    name: str, config: Mapping[str, Any] | None = None, family: str = ""
) -> WeightFormat:
    """The weight format of a model; `none` means the checkpoint's.

    A `quantization_config` decides the details; a name that contradicts it raises `FormatError`.
    """
    if name not in RECIPES:
        from .gguf import file_type

        gguf = (
            "is a type of GGUF files; use it with engine 'llamacpp', or"
            if file_type(name)
            else "is not a known format;"
        )
        raise FormatError(f"inference.quantization={name!r} {gguf} use one of {', '.join(RECIPES)}")
    if config:
        from .quantization_config import config_scheme

        stored = config_scheme(config)
        if name not in ("none", stored.name, *ALSO.get(stored.name, ())):
            raise FormatError(
                f"inference.quantization={name!r}, but the model's own quantization_config says "
                f"{stored.name!r}; leave it out or use {stored.name!r}"
            )
        return stored
    if name == "fp8" and family in BLOCKED:
        return replace(RECIPES[name], pack=FP8_BLOCK, title="FP8, a scale for 128 x 128")
    return RECIPES[name]
