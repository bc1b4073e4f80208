"""A rank's weights in one pass: elements that each token is multiplied by, bytes that are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...models.arch.arch import Arch
from ...models.arch.blocks import Moe
from ...run.weights.shards import (
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

# When weights are used: for every token, for a sequence's last one, or for a prompt's only.
ALWAYS, LAST, ENCODING = "always", "last", "encoding"
# The bytes of a parameter, and the unit of the card that multiplies by it.
WeightSizer = Callable[[ShardedParameter], tuple[float, str]]


class WeightUse(Struct, frozen=True, kw_only=True):
    """Weights that are used in the same way.

    - `used`: ALWAYS, LAST or ENCODING
    - `unit`: the unit of the card that multiplies by them
    - `chosen`: the share of experts to which a token is routed; 1 for other weights
    - `spread`: data-parallel ranks whose tokens they process
    - `elements`: those that are multiplied; `bytes`: those that are read
    """

    used: str
    unit: str
    chosen: float = 1.0
    spread: int = 1
    elements: float = 0.0
    bytes: float = 0.0

    def read(self, tokens: float) -> float:
        """Bytes that a pass over `tokens` tokens of each rank reads; few tokens reach few experts.

        Each of n tokens is routed to k of e experts, all equally likely: e (1 - (1 - k/e)^n) of
        them are read.
        """
        if not tokens:
            return 0.0
        unread: float = (1 - self.chosen) ** (tokens * self.spread)
        return self.bytes * (1 - unread)

    def products(self, tokens: float) -> float:
        """Multiplications and additions for `tokens` tokens of each rank."""
        return 2 * self.elements * self.chosen * tokens * self.spread


def parts(
    arch: Arch, shard: ServerShard, sized: WeightSizer, gathered: int = 1, sharing: int = 1
) -> tuple[WeightUse, ...]:
    """A rank's weights, grouped by their use.

    Left out are the embedding table, of which a pass reads a few rows, unless it is the head as
    well, and the tower, which only images need. `gathered`: data-parallel ranks that share all
    weights but attention's; `sharing`: those that share experts only.
    """
    sums: dict[WeightUse, tuple[float, float]] = {}
    for one in held(arch, shard):
        use = _use(one, arch, shard, gathered, sharing)
        if use is None:
            continue
        size, unit = sized(one)
        key = WeightUse(unit=unit, **use)
        elements, read = sums.get(key, (0.0, 0.0))
        sums[key] = (elements + (one.numel if _is_multiplied(one) else 0), read + size)
    return tuple(
        replace(key, elements=elements, bytes=read) for key, (elements, read) in sums.items()
    )


def _use(
    one: ShardedParameter, arch: Arch, shard: ServerShard, gathered: int, sharing: int
) -> Mapping[str, Any] | None:
    """The fields of a parameter's WeightUse; None where a pass does not read it."""
    if one.part == TOWER:
        return None
    if one.part == EMBEDDING:
        tied = arch.head is None and shard.head and _is_token_table(one, arch)
        return {"used": LAST, "spread": gathered} if tied else None
    if one.layer < 0:
        return {"used": LAST, "spread": gathered if one.role == HEAD else 1}
    layer = arch.layers[one.layer]
    used = ENCODING if layer.kind == "encoder" else ALWAYS
    if one.part == EXPERTS and one.role != ROUTER and isinstance(layer.mlp, Moe):
        share = min(1.0, layer.mlp.top_k / layer.mlp.num_experts)
        return {"used": used, "chosen": share, "spread": gathered * sharing}
    return {"used": used, "spread": gathered if one.part == FEED_FORWARD else 1}


def _is_token_table(one: ShardedParameter, arch: Arch) -> bool:
    """Whether it is the table of token embeddings; Gemma 3n has a second one, for its layers."""
    return one.role == EMBEDDING and one.shape[-1] == arch.hidden


def _is_multiplied(one: ShardedParameter) -> bool:
    """Whether tokens are multiplied by it: a matrix or a convolution."""
    if one.role in (LINEAR, EXPERT, ROUTER, HEAD, EMBEDDING):
        return len(one.shape) > 1
    return "conv" in one.name and len(one.shape) > 1


def read_bytes(parts: Iterable[WeightUse], used: str, tokens: float) -> float:
    """Bytes that a pass over `tokens` tokens reads of the weights of one use."""
    return sum(part.read(tokens) for part in parts if part.used == used)


def products(parts: Iterable[WeightUse], used: str, tokens: float) -> dict[str, float]:
    """Operations of a pass over `tokens` tokens with the weights of one use, by unit."""
    flops: dict[str, float] = {}
    for part in parts:
        if part.used == used:
            flops[part.unit] = flops.get(part.unit, 0.0) + part.products(tokens)
    return flops
