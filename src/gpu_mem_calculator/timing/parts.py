"""What a rank's weights are to a pass: elements a token is multiplied by, bytes that are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from ..model.arch import Arch
from ..model.blocks import Moe
from ..weights.shards import (
    EMBEDDING,
    EXPERT,
    EXPERTS,
    FEED_FORWARD,
    HEAD,
    LINEAR,
    ROUTER,
    TOWER,
    ServerShard,
    ShardedParameter,
    held,
)

# When a part is used: with every token, with a sequence's last one, or with a prompt's only.
ALWAYS, LAST, ENCODING = "always", "last", "encoding"
Sized = Callable[
    [ShardedParameter], tuple[float, str]
]  # a parameter to its bytes and the unit it runs on


class WeightUse(Struct, frozen=True, kw_only=True):
    """Weights that are used alike.

    `chosen`: the share of experts that a token is sent to. `spread`: how many ranks' tokens come by
    where attention is data-parallel.
    """

    used: str
    unit: str
    chosen: float = 1.0
    spread: int = 1
    elements: float = 0.0
    bytes: float = 0.0

    def read(self, tokens: float) -> float:
        """Bytes that a pass with so many tokens reads: with few of them, few experts are chosen.

        Each token picks k of e, all alike: e (1 - (1 - k/e)^n) of them are read.
        """
        if not tokens:
            return 0.0
        unread: float = (1 - self.chosen) ** (tokens * self.spread)
        return self.bytes * (1 - unread)

    def products(self, tokens: float) -> float:
        """Multiplications and additions of so many tokens."""
        return 2 * self.elements * self.chosen * tokens * self.spread


def parts(
    arch: Arch, shard: ServerShard, sized: Sized, gathered: int = 1, sharing: int = 1
) -> tuple[WeightUse, ...]:
    """A rank's, those that are used alike in one. A table of embeddings is not read but for a few
    rows, unless it is the head as well; a tower is for pictures.

    `gathered`: data-parallel ranks that share all but attention; `sharing`: those that share
    experts only.
    """
    sums: dict[WeightUse, tuple[float, float]] = {}
    for one in held(arch, shard):
        kind = _kind(one, arch, shard, gathered, sharing)
        if kind is None:
            continue
        size, unit = sized(one)
        key = WeightUse(unit=unit, **kind)
        elements, read = sums.get(key, (0.0, 0.0))
        sums[key] = (elements + (one.numel if _multiplied(one) else 0), read + size)
    return tuple(
        WeightUse(used=key.used, unit=key.unit, chosen=key.chosen, spread=key.spread,
             elements=elements, bytes=read)
        for key, (elements, read) in sums.items()
    )  # fmt: skip


def _kind(
    one: ShardedParameter, arch: Arch, shard: ServerShard, gathered: int, sharing: int
) -> Mapping[str, Any] | None:
    """How a parameter is used; None where a pass does not read it."""
    if one.part == TOWER:
        return None
    if one.part == EMBEDDING:
        tied = arch.head is None and shard.head and _is_table(one, arch)
        return {"used": LAST, "spread": gathered} if tied else None
    if one.layer < 0:
        return {"used": LAST, "spread": gathered if one.role == HEAD else 1}
    layer = arch.layers[one.layer]
    used = ENCODING if layer.kind == "encoder" else ALWAYS
    if one.part == EXPERTS and one.role != ROUTER and isinstance(layer.mlp, Moe):
        share = min(1.0, layer.mlp.top_k / layer.mlp.num_experts)
        return {"used": used, "chosen": share, "spread": gathered * sharing}
    return {"used": used, "spread": gathered if one.part == FEED_FORWARD else 1}


def _is_table(one: ShardedParameter, arch: Arch) -> bool:
    """Whether it is what hidden states are made from; Gemma 3n has a second, for its layers."""
    return one.role == EMBEDDING and one.shape[-1] == arch.hidden


def _multiplied(one: ShardedParameter) -> bool:
    """Whether it is a matrix that tokens are multiplied by, or a convolution."""
    if one.role in (LINEAR, EXPERT, ROUTER, HEAD, EMBEDDING):
        return len(one.shape) > 1
    return "conv" in one.name and len(one.shape) > 1


def read_bytes(parts: Iterable[WeightUse], used: str, tokens: float) -> float:
    """Bytes of the parts that are used so, in a pass with so many tokens."""
    return sum(part.read(tokens) for part in parts if part.used == used)


def products(parts: Iterable[WeightUse], used: str, tokens: float) -> dict[str, float]:
    """Operations by unit."""
    found: dict[str, float] = {}
    for part in parts:
        if part.used == used:
            found[part.unit] = found.get(part.unit, 0.0) + part.products(tokens)
    return found
