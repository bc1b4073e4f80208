"""The part of a model that one rank of a server has.

Legend: t ranks that cut a tensor. Heads and feed-forwards are cut, norms and routers repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...ledger.num import ceil_div
from ...ledger.rules import Dim
from ...model.arch import Arch, Layer
from ...model.blocks import Attention, Moe, Weight


class Shard(Struct, frozen=True, kw_only=True):
    """One rank's part: its layers, and along what they are cut.

    Attention may be cut over fewer ranks than feed-forwards (data-parallel attention). Experts are
    spread whole over `ep` ranks and each cut over `expert_tp`. A vocabulary is padded to a multiple
    of `vocab_multiple` before it is cut.
    """

    places: range
    embedding: bool = True
    head: bool = True
    tp: int = 1
    attention_tp: int = 1
    ep: int = 1
    expert_tp: int = 1
    vocab_multiple: int = 1

    def layers(self, arch: Arch) -> Iterator[Layer]:
        """Its layers."""
        return (arch.layers[place] for place in self.places)

    def kv_heads(self, heads: int) -> int:
        """Key-value heads on the rank: a head that is not cut is repeated."""
        return max(1, heads // self.attention_tp)

    def vocab(self, size: int) -> int:
        """Rows of the vocabulary on the rank."""
        padded = ceil_div(size, self.vocab_multiple) * self.vocab_multiple
        return int(ceil_div(padded, self.tp))


class Held(Struct, frozen=True):
    """A parameter as a rank holds it: its name in the model, its cut shape, and what it is."""

    name: str
    shape: tuple[int, ...]
    role: str  # linear, expert, router, embedding, head, norm, tower, other
    layer: int = -1


def held(arch: Arch, shard: Shard) -> Iterator[Held]:
    """Every parameter on the rank, in the model's order."""
    if shard.embedding:
        for weight in arch.embedding:
            role = "embedding" if "vocab" in dict(weight.dims) else "other"
            yield Held(weight.name, _shape(weight.dims, shard, None), role)
        if arch.embedding_norm is not None:
            yield from (_plain(weight) for weight in arch.embedding_norm.weights())
        for weight in arch.tower:
            yield Held(weight.name, _shape(weight.dims, shard, None), "tower")
    for place in shard.places:
        name = arch.layer_names[place] if arch.layer_names else f"{arch.layer_prefix}.{place}"
        for one in _layer(arch.layers[place], shard):
            yield Held(f"{name}.{one.name}", one.shape, one.role, place)
    if shard.head:
        yield from _behind(arch, shard)


def _behind(arch: Arch, shard: Shard) -> Iterator[Held]:
    """The final norm and the head; a tied head is a copy where another rank has the embedding."""
    if arch.final_norm is not None:
        yield from (_plain(weight) for weight in arch.final_norm.weights())
    if arch.head is not None:
        for weight in arch.head.weights():
            yield Held(weight.name, _shape(weight.dims, shard, None), "head")
    elif not shard.embedding:
        yield Held("lm_head.weight", (shard.vocab(arch.vocab), arch.hidden), "head")
    yield from (_plain(weight) for weight in arch.head_extra)


def _plain(weight: Weight) -> Held:
    shape = tuple(int(size) for _, size in weight.dims)
    return Held(weight.name, shape, "norm" if len(shape) == 1 else "other")


def _layer(layer: Layer, shard: Shard) -> Iterator[Held]:
    mixer, moe = layer.mixer, layer.mlp if isinstance(layer.mlp, Moe) else None
    routing = {f"{layer.mlp_name}.{w.name}" for w in moe.router} if moe else set()
    spread = {f"{layer.mlp_name}.{w.name}" for w in moe.experts} if moe else set()
    fused = ""
    if isinstance(mixer, Attention) and len(mixer.inputs) == 1:
        fused = f"{layer.mixer_name}.{mixer.inputs[0].name}." if layer.mixer_name else (
            f"{mixer.inputs[0].name}.")  # fmt: skip
    for weight in layer.weights():
        if weight.name in routing:
            shape = tuple(int(size) for _, size in weight.dims)
            yield Held(weight.name, shape, "router")
        elif weight.name in spread:
            yield Held(weight.name, _shape(weight.dims, shard, mixer), "expert")
        else:
            joined = bool(fused) and weight.name.startswith(fused)
            shape = _shape(weight.dims, shard, mixer, joined=joined)
            yield Held(weight.name, shape, "linear" if len(shape) > 1 else "norm")


def _shape(
    dims: tuple[Dim, ...], shard: Shard, mixer: object, *, joined: bool = False
) -> tuple[int, ...]:
    """A tensor's dimensions after the cuts. `joined`: q, k and v are one projection."""
    found = []
    for dim, size in dims:
        whole = int(size)
        if dim == "heads" and joined and isinstance(mixer, Attention):
            heads = ceil_div(mixer.heads, shard.attention_tp) * mixer.head_dim
            both = shard.kv_heads(mixer.kv_heads) * (
                mixer.head_dim + (mixer.value_dim or mixer.head_dim))  # fmt: skip
            found.append(int(heads + both))
        elif dim == "kv_heads" and isinstance(mixer, Attention):
            found.append(shard.kv_heads(mixer.kv_heads) * (whole // mixer.kv_heads))
        else:
            found.append(_cut(dim, whole, shard))
    return tuple(found)


def _cut(dim: str, size: int, shard: Shard) -> int:
    if dim == "vocab":
        return shard.vocab(size)
    ranks = {
        "heads": shard.attention_tp, "kv_heads": shard.attention_tp, "state": shard.attention_tp,
        "ffn": shard.tp, "expert": shard.ep, "expert_ffn": shard.expert_tp,
    }.get(dim, 1)  # fmt: skip
    return int(ceil_div(size, ranks))
