"""A model whose sizes are `Sym`s, so that formulas record their own text."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.sym import Sym

# The letters of sizes: by the name of a dim, and by the name of a field.
DIMS = {"embed": "h", "vocab": "v", "ffn": "f", "expert_ffn": "f", "expert": "e", "router": "e"}
FIELDS = {
    "hidden": "h",
    "vocab": "v",
    "ffn": "f",
    "heads": "a",
    "kv_heads": "g",
    "head_dim": "d",
    "top_k": "k",
    "num_experts": "e",
    "value_dim": "d_v",
    "nope_dim": "d_n",
    "rope_dim": "d_r",
    "kv_rank": "r_kv",
    "query_rank": "r_q",
}

T = TypeVar("T", bound=Struct)


def symbolic(part: T) -> T:
    """The same structure with letters for its sizes."""
    changed = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if name in FIELDS and type(value) is int and value > 0:
            changed[name] = Sym.named(value, FIELDS[name])
        else:
            changed[name] = _with_letters(value, {})
    return replace(part, **changed)


def _with_letters(value: Any, copies: dict[int, Any]) -> Any:
    if isinstance(value, Struct):
        return symbolic(value)
    if not isinstance(value, tuple):
        return value
    if len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int:
        name, size = value
        return (name, Sym.named(size, DIMS[name])) if name in DIMS else value
    items: list[Any] = []
    for item in value:  # equal layers stay one object
        if id(item) not in copies:
            copies[id(item)] = _with_letters(item, copies)
        items.append(copies[id(item)])
    return tuple(items)
