"""A model whose parameters are scaled to a published count; its activations are not."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .arch import Arch
from .blocks import Share


def scaled(arch: Arch, parameters: int | None) -> Arch:
    """The architecture with that many parameters, up to rounding; itself for None."""
    return arch if parameters is None else _scaled(arch, parameters)


@lru_cache(maxsize=64)
def _scaled(arch: Arch, parameters: int) -> Arch:
    return with_share(arch, (parameters, arch.num_parameters))


def with_share(arch: Arch, share: Share) -> Arch:
    """The architecture with `share` set on every parameter."""
    result: Arch = _set_share(arch, share, {})
    return result


def _set_share(value: Any, share: Share, copies: dict[int, Any]) -> Any:
    """A copy of a part of the model with the share set; equal layers stay one object."""
    if id(value) in copies:
        return copies[id(value)]
    copy = value
    if isinstance(value, Struct):
        fields = value.__struct_fields__
        changed = {name: _set_share(getattr(value, name), share, copies) for name in fields}
        copy = replace(value, **changed | ({"share": share} if "share" in fields else {}))
    elif isinstance(value, tuple) and any(isinstance(item, Struct | tuple) for item in value):
        copy = tuple(_set_share(item, share, copies) for item in value)
    copies[id(value)] = copy
    return copy
