"""How a model's weights are stored: by name, by the checkpoint's own config, as GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from .gguf import file_type
from .quantization_config import config_scheme
from .recipes import ALSO, BLOCKED, FP8_BLOCK, RECIPES, FormatError
from .scheme import WeightFormat

__all__ = ["FormatError", "WeightFormat", "scheme"]


def scheme(name: str, config: Mapping[str, Any] | None = None, family: str = "") -> WeightFormat:
    """The format that a name means for a model; `none` is the checkpoint's own.

    A `quantization_config` wins for the details, and a name that contradicts it is refused.
    """
    if name not in RECIPES:
        gguf = ("is a type of GGUF files; use it with engine 'llamacpp', or"
                if file_type(name) else "is not a known format;")  # fmt: skip
        raise FormatError(f"inference.quantization={name!r} {gguf} use one of {', '.join(RECIPES)}")
    if config:
        found = config_scheme(config)
        if name not in ("none", found.name, *ALSO.get(found.name, ())):
            raise FormatError(
                f"inference.quantization={name!r}, but the model's own quantization_config says "
                f"{found.name!r}; leave it out or use {found.name!r}"
            )
        return found
    if name == "fp8" and family in BLOCKED:
        return replace(RECIPES[name], pack=FP8_BLOCK, title="FP8, a scale for 128 x 128")
    return RECIPES[name]
