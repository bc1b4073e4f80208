"""Every parameter that one rank of a server stores.

Attention heads and feed-forwards are sharded, norms and routers replicated.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.remember import remembered
from ...models.arch.arch import Arch
from .layer_parameters import layer_parameters, norm_parameter, shard_shape
from .server_shard import (
    EMBEDDING,
    EXPERT,
    EXPERTS,
    FEED_FORWARD,
    HEAD,
    LINEAR,
    NORM,
    NORMS,
    OTHER,
    ROUTER,
    TOWER,
    ServerShard,
    ShardedParameter,
)

__all__ = [
    "EMBEDDING",
    "EXPERT",
    "EXPERTS",
    "FEED_FORWARD",
    "HEAD",
    "LINEAR",
    "NORM",
    "NORMS",
    "ROUTER",
    "TOWER",
    "ServerShard",
    "ShardedParameter",
    "held",
]


@remembered(64, always=True)
def held(arch: Arch, shard: ServerShard) -> tuple[ShardedParameter, ...]:
    """Every parameter on the rank, in the model's order; a vision tower is with the embedding.

    The tower's heads and feed-forwards are sharded like the model's (vLLM 0.11.0 siglip.py,
    pixtral.py).
    """
    return tuple(_parameters(arch, shard))


def _parameters(arch: Arch, shard: ServerShard) -> Iterator[ShardedParameter]:
    if shard.embedding:
        tower = replace(shard, tp=1, attention_tp=1) if shard.tower_tp == 1 else shard
        yield from (
            ShardedParameter(weight.name, shard_shape(weight.dims, tower), OTHER, part=TOWER)
            for weight in arch.tower
        )
        for weight in arch.embedding:
            role = EMBEDDING if "vocab" in dict(weight.dims) else OTHER
            yield ShardedParameter(
                weight.name,
                shard_shape(weight.dims, shard, shard.embedding_tp),
                role,
                part=EMBEDDING,
            )
        if arch.embedding_norm is not None:
            yield from (norm_parameter(weight) for weight in arch.embedding_norm.weights())
    by_layer: dict[int, tuple[ShardedParameter, ...]] = {}
    router_biases = {
        buffer.name: buffer for buffer in arch.buffers if buffer.name.endswith("_bias")
    }
    for place in shard.places:
        name = arch.layer_names[place] if arch.layer_names else f"{arch.layer_prefix}.{place}"
        layer = arch.layers[place]
        if id(layer) not in by_layer:
            by_layer[id(layer)] = tuple(layer_parameters(layer, shard))
        for parameter in by_layer[id(layer)]:
            yield ShardedParameter(
                f"{name}.{parameter.name}",
                parameter.shape,
                parameter.role,
                place,
                parameter.part,
                parameter.ins,
                joint=parameter.joint,
            )
        for owner in ("gate.", ""):  # MiniMax-M2 has it next to its gate
            bias = router_biases.get(f"{name}.{layer.mlp_name}.{owner}e_score_correction_bias")
            if bias is not None:
                yield ShardedParameter(
                    bias.name, bias.shape, ROUTER, place, EXPERTS, bits=bias.bits
                )
    if shard.head:
        yield from _head_parameters(arch, shard)


def _head_parameters(arch: Arch, shard: ServerShard) -> Iterator[ShardedParameter]:
    """The final norm and the head; a tied head is a copy if another rank has the embedding."""
    if arch.final_norm is not None:
        yield from (norm_parameter(weight) for weight in arch.final_norm.weights())
    if arch.head is not None:
        for weight in arch.head.weights():
            yield ShardedParameter(
                weight.name, shard_shape(weight.dims, shard, shard.head_tp), HEAD, part=HEAD
            )
    elif not shard.embedding:
        rows = shard.vocab(arch.vocab, shard.head_tp)
        yield ShardedParameter("lm_head.weight", (rows, arch.hidden), HEAD, part=HEAD)
    for weight in arch.head_extra:
        shape = shard_shape(weight.dims, shard, shard.head_tp)
        yield ShardedParameter(weight.name, shape, OTHER if len(shape) > 1 else NORM, part=HEAD)
