"""Llama with other numbers: a family is a row, and this file reads it.

A row has a family's defaults in transformers 5.17 and the parts in which it differs from Llama:
biases, norms, the activation, rotary embedding, windows, experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..arch.arch import Arch, Buffer, Layer
from ..arch.blocks import Attention, Mlp, Moe, RotaryImpl, Weight
from .attention import head_counts, partial_rotary, separate_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer, rotary_buffer
from .mlps import fused_mlp, mlp_block, router_biases
from .norms import PRE, MakeNorm, norms_at, rms
from .windows import Windows

Counts = tuple[int, int, int]  # query heads, key-value heads, size of a head
Switch = tuple[str, bool]  # a key that is true or false, and its default; "": no such key
Rate = tuple[str, float]  # the key of a dropout rate, and its default; "": there is none
NO_RATE = ("", 0.0)
ATTENTION, MLP = ("attention_bias", False), ("mlp_bias", False)
NEVER, ALWAYS = ("", False), ("", True)
NO_BIASES, ATTENTION_ONLY = (NEVER, NEVER, NEVER), (ATTENTION, ATTENTION, NEVER)


def no_windows(config: Config, layers: int) -> Windows:
    """Full attention in every layer."""
    return ()


def no_buffers(config: Config, layers: Sequence[Layer]) -> tuple[Buffer, ...]:
    """No buffers in the layers."""
    return ()


def expert_biases(config: Config, layers: Sequence[Layer]) -> tuple[Buffer, ...]:
    """The fp32 bias per expert that steers routing, in each layer that has experts."""
    return router_biases(layers)


def no_fields(config: Config, *sizes: Any) -> Fields:
    """Nothing beside what Llama has."""
    return {}


class LlamaLike(Struct, frozen=True):
    """A family's default sizes, which rows give by position, and how it differs from Llama."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int | None  # None: as many as query heads
    vocab: int
    max_seq_len: int
    head_dim: int | None = None  # None: hidden / heads
    tied: bool = False
    biases: tuple[Switch, Switch, Switch] = (ATTENTION, ATTENTION, MLP)  # q k v, output, MLP
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # one name: gate and up
    activation: str = "silu"
    activation_key: str = "hidden_act"
    experts: Callable[[Config, int], Moe | None] | None = None  # instead of an MLP
    sparse: Callable[[Config, int], list[bool]] | None = None  # layers with experts; None: all
    norm: MakeNorm = rms
    norms: tuple[tuple[str, str], ...] = PRE
    qk_norms: tuple[str, ...] = ()  # names of the norms over each head of q and k
    parallel: Switch = NEVER  # attention and MLP read the same norm
    rotary: float | None = None  # the default share of a head that is turned; None: all of it
    rotary_impl: RotaryImpl = "half"
    rotates: Callable[[Config, Windows, int], list[bool]] | None = None  # None: in every layer
    windows: Callable[[Config, int], Windows] = no_windows
    attention_dropout: float = 0.0
    residual_dropout: Rate = NO_RATE  # after the attention
    mlp_dropout: Rate = NO_RATE
    attention: Callable[[Config, Counts], Fields] = no_fields  # further fields of the attention
    frame: Callable[[Config, int], Fields] = no_fields  # further fields of the model
    buffers: Callable[[Config, Sequence[Layer]], tuple[Buffer, ...]] = no_buffers  # of the layers
    extra: tuple[str, ...] = ()  # single numbers that a layer learns
    trains: bool = True


def switched(config: Config, switch: Switch) -> bool:
    """The value of a switch."""
    return config.flag(switch[0], default=switch[1]) if switch[0] else switch[1]


def rate(config: Config, dropout: Rate) -> float:
    """A dropout rate."""
    return config.number(dropout[0], default=dropout[1]) if dropout[0] else 0.0


def row_counts(config: Config, row: LlamaLike, hidden: int) -> Counts:
    """Heads and their size by a row."""
    kv_heads, head_dim = row.kv_heads, row.head_dim
    return head_counts(config, hidden, heads=row.heads, kv_heads=kv_heads, head_dim=head_dim)


def rotary_width(config: Config, row: LlamaLike, head_dim: int) -> int:
    """Channels of a head that the rotary embedding turns."""
    return head_dim if row.rotary is None else partial_rotary(config, head_dim, row.rotary)


def row_mlp(config: Config, row: LlamaLike, hidden: int) -> Mlp:
    """The dense feed-forward block of a row."""
    ffn, activation = config.ffn(row.ffn), config.text(row.activation_key, row.activation)
    if len(row.mlp_names) == 1:
        return fused_mlp(hidden, ffn, activation=activation)
    *inputs, output = row.mlp_names
    bias, dropout = switched(config, row.biases[2]), rate(config, row.mlp_dropout)
    rest: Fields = {"bias": bias, "activation": activation, "dropout": dropout}
    return mlp_block(hidden, ffn, inputs, output, **rest)


def row_attention(config: Config, row: LlamaLike, hidden: int) -> Attention:
    """The attention of a row."""
    counts = row_counts(config, row, hidden)
    size = counts[2]
    fields: Fields = {
        "norms": tuple(replace(row.norm(n, size), size=("head_dim", size)) for n in row.qk_norms),
        "rotary_dim": rotary_width(config, row, size),
        "rotary_impl": row.rotary_impl,
        "dropout": config.number("attention_dropout", default=row.attention_dropout),
        "residual_dropout": rate(config, row.residual_dropout),
    }
    bias, output_bias = (switched(config, switch) for switch in row.biases[:2])
    fields |= row.attention(config, counts)
    return separate_attention(hidden, *counts, bias=bias, output_bias=output_bias, **fields)


def row_layer(config: Config, row: LlamaLike, hidden: int, moe: Moe | None = None) -> Layer:
    """One layer, with experts where they are given."""
    parallel = switched(config, row.parallel)
    places = row.norms[:1] if parallel else row.norms
    return decoder_layer(
        hidden,
        row_attention(config, row, hidden),
        row_mlp(config, row, hidden) if moe is None else moe,
        norms=norms_at(places, hidden, row.norm),
        parallel=parallel,
        extra=tuple(Weight(name, (("one", 1),)) for name in row.extra),
    )


def row_layers(config: Config, row: LlamaLike, hidden: int) -> tuple[Layer, ...]:
    """The layers of a row, all alike unless some have experts."""
    layers = config.layers(row.layers)
    moe = None if row.experts is None else row.experts(config, hidden)
    if row.sparse is None:
        return (row_layer(config, row, hidden, moe),) * layers
    dense = row_layer(config, row, hidden)
    sparse = dense if moe is None else row_layer(config, row, hidden, moe)
    return tuple(sparse if flag else dense for flag in row.sparse(config, layers))


def without_rotary(layer: Layer) -> Layer:
    """The same layer, its attention without positions."""
    assert isinstance(layer.mixer, Attention)
    return replace(layer, mixer=replace(layer.mixer, rotary_dim=0))


def row_decoder(config: Config, family: str, row: LlamaLike, layers: tuple[Layer, ...]) -> Arch:
    """The model around the layers of a row."""
    hidden, windows = config.hidden(row.hidden), row.windows(config, len(layers))
    mixer = layers[0].mixer
    assert isinstance(mixer, Attention)
    if row.rotates is not None:
        flags = row.rotates(config, windows, len(layers))
        bare = {id(layer): without_rotary(layer) for layer in layers}
        pairs = zip(layers, flags, strict=True)
        layers = tuple(layer if flag else bare[id(layer)] for layer, flag in pairs)
    norm, buffers = row.norm("model.norm", hidden), row.buffers(config, layers)
    fields: Fields = {"final_norm": norm, "windows": windows, "trains": row.trains}
    fields |= {"vocab": row.vocab, "max_seq_len": row.max_seq_len, "tied": row.tied}
    fields |= {"buffers": buffers + rotary_buffer(mixer.rotary_dim)} | row.frame(config, hidden)
    return decoder(config, family, hidden, layers, **fields)


def read_row(family: str, row: LlamaLike, config: Config) -> Arch:
    """The model that a config.json of this family describes."""
    return row_decoder(config, family, row, row_layers(config, row, config.hidden(row.hidden)))


def readers(rows: Mapping[str, LlamaLike]) -> dict[str, Callable[[Config], Arch]]:
    """A reader for each family of a table."""
    return {family: partial(read_row, family, row) for family, row in rows.items()}
