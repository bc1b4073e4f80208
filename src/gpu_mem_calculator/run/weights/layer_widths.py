"""Widths of a layer's tensors on one rank, in elements per token.

Servers that run the same fused layers share these; how long each tensor lives differs by server.

Legend: h hidden, f feed-forward on the rank, k experts a token is sent to.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import ceil_div
from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import (
    Attention,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    Recurrence,
    StateSpace,
)
from .shards import ServerShard


class ExpertWidths(Struct, frozen=True, kw_only=True):
    """A mixture of experts on one rank.

    - `top_k`: rows for each token; `count`: experts of the layer
    - `up`: elements into the activation, gate and up together; `act`: elements out of it
    """

    top_k: int
    count: int
    up: int
    act: int


class LayerWidths(Struct, frozen=True, kw_only=True):
    """One layer on one rank.

    - `hidden`: the hidden size
    - `mixed`: elements into attention (q, k, v together); `read`: elements out of it
    - `up`: of a feed-forward or a shared expert, into the activation, gate and up together;
      `act`: out of it
    - `experts`: the mixture of experts, if the layer has one
    """

    hidden: int
    mixed: int = 0
    read: int = 0
    up: int = 0
    act: int = 0
    experts: ExpertWidths | None = None


def layer_widths(layer: Layer, hidden: int, shard: ServerShard) -> LayerWidths:
    """The widths of one layer on the rank."""
    mixed = read = 0
    for mixer in layer.mixers:
        inputs, outputs = mixer_widths(mixer, shard)
        mixed, read = max(mixed, inputs), max(read, outputs)
    up, act = (0, 0) if layer.mlp is None else mlp_widths(layer.mlp, shard)
    return LayerWidths(
        hidden=hidden,
        mixed=mixed,
        read=read,
        up=up,
        act=act,
        experts=expert_widths(layer.mlp, shard),
    )


def mixer_widths(mixer: Mixer, shard: ServerShard) -> tuple[int, int]:
    """Elements into attention or a scan, and out of it."""
    ranks = shard.attention_tp
    if isinstance(mixer, Attention):
        heads, value = ceil_div(mixer.heads, ranks), mixer.value_dim or mixer.head_dim
        key_value = shard.kv_heads(mixer.kv_heads) * (mixer.head_dim + value)
        return int(heads * mixer.head_dim + key_value), int(heads * value)
    if isinstance(mixer, LatentAttention):
        heads, key = int(ceil_div(mixer.heads, ranks)), mixer.nope_dim + mixer.rope_dim
        latent = mixer.kv_rank + mixer.rope_dim + mixer.query_rank
        return latent + heads * (2 * key + mixer.value_dim), heads * mixer.value_dim
    if isinstance(mixer, StateSpace):
        groups = 2 * mixer.groups * mixer.state if mixer.version == 2 else 0
        return int((2 * mixer.inner + groups) // ranks), mixer.inner // ranks
    assert isinstance(mixer, Recurrence)
    outputs = mixer.heads * mixer.value_dim or mixer.channels
    return (mixer.channels + outputs) // ranks, outputs // ranks


def mlp_widths(mlp: Mlp | Moe, shard: ServerShard) -> tuple[int, int]:
    """Elements into the activation and out of it; of a mixture, those of its shared expert."""
    block = mlp.shared if isinstance(mlp, Moe) else mlp
    if block is None:
        return 0, 0
    ffn = int(ceil_div(block.ffn, shard.tp))
    return (2 if block.gated else 1) * ffn, ffn


def expert_widths(mlp: Mlp | Moe | None, shard: ServerShard) -> ExpertWidths | None:
    """Widths of the experts; with expert parallelism a rank may get all rows. None without."""
    if not isinstance(mlp, Moe):
        return None
    ffn = int(ceil_div(mlp.ffn, shard.expert_tp))
    return ExpertWidths(
        top_k=mlp.top_k, count=mlp.num_experts, act=ffn, up=(2 if mlp.gated else 1) * ffn
    )


def distinct_widths(arch: Arch, shard: ServerShard) -> tuple[LayerWidths, ...]:
    """Widths of the rank's layers, each different one once."""
    unique: dict[LayerWidths, None] = {}
    for layer in shard.layers(arch):
        unique.setdefault(layer_widths(layer, arch.hidden, shard))
    return tuple(unique)


def widest_attention(arch: Arch, shard: ServerShard) -> int:
    """Elements of one token's attention output on a rank, of latents before they are projected,
    in the layer with the most.
    """
    widths = [0]
    for mixer in (mixer for layer in shard.layers(arch) for mixer in layer.mixers):
        if isinstance(mixer, Attention | LatentAttention):
            heads = int(ceil_div(mixer.heads, shard.attention_tp))
            if isinstance(mixer, LatentAttention):
                widths.append(heads * mixer.kv_rank)
            else:
                widths.append(heads * (mixer.value_dim or mixer.head_dim))
    return max(widths)
