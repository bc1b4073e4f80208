"""A model whose parameters are in proportion to a published count; its activations are its own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .arch import Arch
from .blocks import Share


def scaled(arch: Arch, given: int | None) -> Arch:
    """The architecture with `given` parameters, to the rounding of each; itself for None."""
    return arch if given is None else _scaled(arch, given)


@lru_cache(maxsize=64)
def _scaled(arch: Arch, given: int) -> Arch:
    return with_share(arch, (given, arch.num_parameters))


def with_share(arch: Arch, share: Share) -> Arch:
    """The architecture with this share on every parameter."""
    made: Arch = _inside(arch, share, {})
    return made


def _inside(value: Any, share: Share, seen: dict[int, Any]) -> Any:
    """A part of the model with the share set; equal layers stay one object."""
    if id(value) in seen:
        return seen[id(value)]
    made = value
    if isinstance(value, Struct):
        fields = value.__struct_fields__
        changed = {name: _inside(getattr(value, name), share, seen) for name in fields}
        made = replace(value, **changed | ({"share": share} if "share" in fields else {}))
    elif isinstance(value, tuple) and any(isinstance(one, Struct | tuple) for one in value):
        made = tuple(_inside(one, share, seen) for one in value)
    seen[id(value)] = made
    return made
