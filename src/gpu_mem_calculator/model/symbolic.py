"""A model whose sizes are `Sym`s: the same formulas then write themselves down."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.sym import Sym

# Sizes that get a letter: by the name of a dimension, and by the name of a field.
DIMS = {"embed": "h", "vocab": "v", "ffn": "f", "expert_ffn": "f", "expert": "e", "router": "e"}
FIELDS = {"hidden": "h", "vocab": "v", "ffn": "f", "heads": "a", "kv_heads": "g", "head_dim": "d",
          "top_k": "k", "num_experts": "e", "value_dim": "d_v", "nope_dim": "d_n",
          "rope_dim": "d_r", "kv_rank": "r_kv", "query_rank": "r_q"}  # fmt: skip

T = TypeVar("T", bound=Struct)


def symbolic(part: T) -> T:
    """The same structure with letters for its sizes."""
    changed = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if name in FIELDS and type(value) is int and value > 0:
            changed[name] = Sym.named(value, FIELDS[name])
        else:
            changed[name] = _inside(value, {})
    return replace(part, **changed)


def _inside(value: Any, seen: dict[int, Any]) -> Any:
    if isinstance(value, Struct):
        return symbolic(value)
    if not isinstance(value, tuple):
        return value
    if len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int:
        return _dim(*value)
    made: list[Any] = []
    for item in value:  # equal layers stay one object
        if id(item) not in seen:
            seen[id(item)] = _inside(item, seen)
        made.append(seen[id(item)])
    return tuple(made)


def _dim(name: str, size: int) -> tuple[str, Any]:
    return (name, Sym.named(size, DIMS[name])) if name in DIMS else (name, size)
