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

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Attention, Linear, Mlp, Moe, Weight
from .attention import head_counts, partial_rotary, separate_attention
from .config import Config
from .frame import decoder, rotary_buffer
from .mlps import fused_mlp, router_biases
from .norms import PRE, MakeNorm, rms

Counts = tuple[int, int, int]  # query heads, key-value heads, size of a head
Windows = tuple[int | None, ...]  # one for each layer, or empty
Fields = dict[str, Any]
Switch = tuple[str, bool]  # a key that is true or false, and its default; "": no such key
Rate = tuple[str, float]  # the key of a dropout rate, and its default; "": there is none
NO_RATE = ("", 0.0)
ATTENTION, MLP = ("attention_bias", False), ("mlp_bias", False)
NEVER, ALWAYS = ("", False), ("", True)
NO_BIASES = (NEVER, NEVER, NEVER)


def no_windows(config: Config, layers: int) -> Windows:
    """Full attention in every layer."""
    return ()


def no_buffers(config: Config, layers: Sequence[Layer]) -> tuple[Buffer, ...]:
    """No buffers in the layers."""
    return ()


def expert_biases(config: Config, layers: Sequence[Layer]) -> tuple[Buffer, ...]:
    """The fp32 bias per expert that steers routing, in each layer that has experts."""
    return router_biases(layers, "gate.e_score_correction_bias")


def no_fields(config: Config, *sizes: Any) -> Fields:
    """Nothing beside what Llama has."""
    return {}


class LlamaLike(Struct, frozen=True, kw_only=True):
    """A family's default sizes, and how it differs from Llama."""

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
    gated: bool = True
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # one name: gate and up
    activation: str = "silu"
    activation_key: str = "hidden_act"
    experts: Callable[[Config, int], Moe] | None = None  # in every layer, instead of an MLP
    norm: MakeNorm = rms
    norms: tuple[tuple[str, str], ...] = PRE
    qk_norms: tuple[str, ...] = ()  # names of the norms over each head of q and k
    parallel: Switch = NEVER  # attention and MLP read the same norm
    rotary: float | None = None  # the default share of a head that is turned; None: all of it
    rotary_impl: str = "half"
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


def width(config: Config, row: LlamaLike) -> int:
    """The hidden size."""
    return config.size("hidden_size", default=row.hidden)


def rotary_width(config: Config, row: LlamaLike, head_dim: int) -> int:
    """Channels of a head that the rotary embedding turns."""
    return head_dim if row.rotary is None else partial_rotary(config, head_dim, row.rotary)


def row_mlp(config: Config, row: LlamaLike, hidden: int) -> Mlp:
    """The dense feed-forward block of a row."""
    ffn = config.size("intermediate_size", default=row.ffn)
    activation = config.text(row.activation_key, row.activation)
    if len(row.mlp_names) == 1:
        return fused_mlp(hidden, ffn, activation=activation)
    embed, inner, bias = ("embed", hidden), ("ffn", ffn), switched(config, row.biases[2])
    *inputs, output = row.mlp_names
    return Mlp(
        inputs=tuple(Linear(name, embed, inner, bias) for name in inputs),
        output=Linear(output, inner, embed, bias),
        ffn=ffn,
        gated=row.gated,
        activation=activation,
        dropout=rate(config, row.mlp_dropout),
    )


def row_attention(config: Config, row: LlamaLike, hidden: int) -> Attention:
    """The attention of a row."""
    counts = head_counts(
        config, hidden, heads=row.heads, kv_heads=row.kv_heads, head_dim=row.head_dim
    )
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
    """One layer, with experts where they are given or the row has them."""
    if moe is None and row.experts is not None:
        moe = row.experts(config, hidden)
    parallel = switched(config, row.parallel)
    places = row.norms[:1] if parallel else row.norms
    return Layer(
        kind="dense" if moe is None else "moe",
        mixer=row_attention(config, row, hidden),
        mlp=row_mlp(config, row, hidden) if moe is None else moe,
        norms=tuple((place, row.norm(name, hidden)) for place, name in places),
        parallel=parallel,
        extra=tuple(Weight(name, (("one", 1),)) for name in row.extra),
    )


def without_rotary(layer: Layer) -> Layer:
    """The same layer, its attention without positions."""
    assert isinstance(layer.mixer, Attention)
    return replace(layer, mixer=replace(layer.mixer, rotary_dim=0))


def row_decoder(
    config: Config, family: str, row: LlamaLike, layers: tuple[Layer, ...], **rest: Any
) -> Arch:
    """The model around the layers of a row."""
    hidden, windows = width(config, row), row.windows(config, len(layers))
    mixer = layers[0].mixer
    assert isinstance(mixer, Attention)
    if row.rotates is not None:
        flags = row.rotates(config, windows, len(layers))
        bare = {id(layer): without_rotary(layer) for layer in layers}
        pairs = zip(layers, flags, strict=True)
        layers = tuple(layer if flag else bare[id(layer)] for layer, flag in pairs)
    fields: Fields = {
        "final_norm": row.norm("model.norm", hidden),
        "windows": windows,
        "trains": row.trains,
    }
    rotary = rotary_buffer(mixer.rotary_dim)
    fields |= {"buffers": row.buffers(config, layers) + rotary} | row.frame(config, hidden)
    return decoder(
        config,
        family,
        hidden,
        layers,
        vocab=row.vocab,
        max_seq_len=row.max_seq_len,
        tied=row.tied,
        rotary_dim=mixer.rotary_dim,
        **fields | rest,
    )


def read_row(family: str, row: LlamaLike, data: Mapping[str, Any]) -> Arch:
    """The model that a config.json of this family describes, every layer alike."""
    config = Config(data)
    layer = row_layer(config, row, width(config, row))
    layers = (layer,) * config.size("num_hidden_layers", default=row.layers)
    return row_decoder(config, family, row, layers)


def readers(rows: Mapping[str, LlamaLike]) -> dict[str, Callable[[Mapping[str, Any]], Arch]]:
    """A reader for each family of a table."""
    return {family: partial(read_row, family, row) for family, row in rows.items()}
