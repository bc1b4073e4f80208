"""How wide a layer's tensors are on one rank, for each token that passes: what servers that run the
same fused layers have in common. When they are alive is each server's own matter.

Legend: h hidden, f feed-forward on the rank, k experts a token is sent to. All in elements.
"""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import ceil_div
from ..model.arch import Arch, Layer
from ..model.blocks import Attention, LatentAttention, Mixer, Mlp, Moe, Recurrence, StateSpace
from .shards import ServerShard


class ExpertWidths(Struct, frozen=True, kw_only=True):
    """A mixture of experts: rows for each token, and how wide they are."""

    top_k: int
    count: int  # experts of the layer
    up: int  # into the activation, gate and up together
    act: int  # out of it


class LayerWidths(Struct, frozen=True, kw_only=True):
    """One layer. `mixed` goes into attention (q, k, v together), `read` comes out of it."""

    hidden: int
    mixed: int = 0
    read: int = 0
    up: int = 0  # of a feed-forward or a shared expert: into the activation, gate and up together
    act: int = 0  # out of it
    experts: ExpertWidths | None = None


def layer_widths(layer: Layer, hidden: int, shard: ServerShard) -> LayerWidths:
    """A layer's, after the cuts."""
    mixed = read = 0
    for mixer in layer.mixers:
        wide, out = mixer_widths(mixer, shard)
        mixed, read = max(mixed, wide), max(read, out)
    up, act = (0, 0) if layer.mlp is None else mlp_widths(layer.mlp, shard)
    return LayerWidths(hidden=hidden, mixed=mixed, read=read, up=up, act=act,
                  experts=expert_widths(layer.mlp, shard))  # fmt: skip


def mixer_widths(mixer: Mixer, shard: ServerShard) -> tuple[int, int]:
    """What goes into attention or a scan, and what comes out."""
    ranks = shard.attention_tp
    if isinstance(mixer, Attention):
        heads, value = ceil_div(mixer.heads, ranks), mixer.value_dim or mixer.head_dim
        both = shard.kv_heads(mixer.kv_heads) * (mixer.head_dim + value)
        return int(heads * mixer.head_dim + both), int(heads * value)
    if isinstance(mixer, LatentAttention):
        heads, key = int(ceil_div(mixer.heads, ranks)), mixer.nope_dim + mixer.rope_dim
        latent = mixer.kv_rank + mixer.rope_dim + mixer.query_rank
        return latent + heads * (2 * key + mixer.value_dim), heads * mixer.value_dim
    if isinstance(mixer, StateSpace):
        groups = 2 * mixer.groups * mixer.state if mixer.version == 2 else 0
        return int((2 * mixer.inner + groups) // ranks), mixer.inner // ranks
    assert isinstance(mixer, Recurrence)
    out = mixer.heads * mixer.value_dim or mixer.channels
    return (mixer.channels + out) // ranks, out // ranks


def mlp_widths(mlp: Mlp | Moe, shard: ServerShard) -> tuple[int, int]:
    """Into the activation and out of it; of a mixture, its shared expert."""
    block = mlp.shared if isinstance(mlp, Moe) else mlp
    if block is None:
        return 0, 0
    wide = int(ceil_div(block.ffn, shard.tp))
    return (2 if block.gated else 1) * wide, wide


def expert_widths(mlp: Mlp | Moe | None, shard: ServerShard) -> ExpertWidths | None:
    """Rows of experts; where they are spread, a rank may get all of them."""
    if not isinstance(mlp, Moe):
        return None
    wide = int(ceil_div(mlp.ffn, shard.expert_tp))
    return ExpertWidths(top_k=mlp.top_k, count=mlp.num_experts, act=wide,
                   up=(2 if mlp.gated else 1) * wide)  # fmt: skip


def distinct_widths(arch: Arch, shard: ServerShard) -> tuple[LayerWidths, ...]:
    """Every different kind of layer on the rank."""
    found: dict[LayerWidths, None] = {}
    for layer in shard.layers(arch):
        found.setdefault(layer_widths(layer, arch.hidden, shard))
    return tuple(found)
