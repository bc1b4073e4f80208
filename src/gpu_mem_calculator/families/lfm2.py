"""LFM2: short convolutions with some attention, dense and with experts.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Mixer, Mlp, Moe, Norm, Recurrence, Weight
from .attention import head_counts, head_norms, separate_attention
from .config import Config
from .frame import decoder
from .hybrid_layers import LINEAR, indexed, mixed_types
from .mlps import stacked_moe
from .windows import FULL


def short_conv(config: Config, hidden: int) -> Recurrence:
    """Lfm2ShortConv: a gated convolution over `conv_L_cache` tokens."""
    taps = config.size("conv_L_cache", default=3)
    bias = config.flag("conv_bias", default=False)
    embed, wide = ("embed", hidden), ("state", hidden)
    weights = [
        Weight("conv.weight", (wide, ("conv_in", 1), ("conv", taps))),
        *((Weight("conv.bias", (wide,)),) if bias else ()),
        *Linear("in_proj", embed, ("state", 3 * hidden), bias).weights(),
        *Linear("out_proj", wide, embed, bias).weights(),
    ]
    return Recurrence(kind="short_conv", parameters=tuple(weights), channels=hidden, conv=taps)


def swiglu(hidden: int, ffn: int) -> Mlp:
    """w1 and w3 in, w2 out."""
    embed, inner = ("embed", hidden), ("ffn", ffn)
    return Mlp(
        inputs=(Linear("w1", embed, inner), Linear("w3", embed, inner)),
        output=Linear("w2", inner, embed),
        ffn=ffn,
        gated=True,
    )


def feed_forward(config: Config, hidden: int) -> Mlp:
    """The width is two thirds of `intermediate_size`, rounded up where the config says so."""
    ffn = config.size("block_ff_dim", "intermediate_size", default=12288)
    if config.flag("block_auto_adjust_ff_dim", default=True):
        ffn = int(2 * ffn / 3)
        multiplier = config.number("block_ffn_dim_multiplier", default=1.0)
        multiple = config.size("block_multiple_of", default=256)
        ffn = -(-int(multiplier * ffn) // multiple) * multiple
    return swiglu(hidden, max(1, ffn))


def _stack(
    config: Config, family: str, hidden: int, types: list[str], mlps: list[Mlp | Moe]
) -> Arch:
    counts = head_counts(config, hidden, heads=32, kv_heads=8)
    attention = separate_attention(
        hidden,
        *counts,
        output="out_proj",
        norms=head_norms(("q_layernorm", "k_layernorm"), counts[2]),
        rotary_dim=counts[2],
    )
    mixers: dict[str, Mixer] = {FULL: attention, LINEAR: short_conv(config, hidden)}
    embed = ("embed", hidden)
    norms = (("pre", Norm("operator_norm", embed)), ("pre_mlp", Norm("ffn_norm", embed)))
    pairs = list(zip(types, mlps, strict=True))
    by_pair = {
        (kind, id(mlp)): Layer(
            kind="moe" if isinstance(mlp, Moe) else "dense",
            mixer=mixers[kind],
            mixer_name="self_attn" if kind == FULL else "conv",
            mlp=mlp,
            mlp_name="feed_forward",
            norms=norms,
        )
        for kind, mlp in pairs
    }
    tied = config.flag("tie_embedding", default=config.flag("tie_word_embeddings", default=True))
    return decoder(
        Config({**config.data, "tie_word_embeddings": tied}),
        family,
        hidden,
        tuple(by_pair[kind, id(mlp)] for kind, mlp in pairs),
        vocab=65536,
        max_seq_len=128000,
        tied=True,
        rotary_dim=counts[2],
        final_norm=Norm("model.embedding_norm", embed),
        trains=False,
    )


def _sizes(config: Config, *, hidden: int) -> tuple[int, int, list[str]]:
    """Width, number of layers, and the mixer of each layer."""
    hidden = config.size("hidden_size", default=hidden)
    layers = config.size("num_hidden_layers", default=32)
    usual = indexed(config, "full_attn_idxs", layers, range(layers))
    return hidden, layers, mixed_types(config, "layer_types", layers, usual)


def read_lfm2(data: Mapping[str, Any]) -> Arch:
    """LFM2 (transformers 5.17 models/lfm2)."""
    config = Config(data)
    hidden, layers, types = _sizes(config, hidden=2560)
    mlp: Mlp | Moe = feed_forward(config, hidden)
    return _stack(config, "lfm2", hidden, types, [mlp] * layers)


def read_lfm2_moe(data: Mapping[str, Any]) -> Arch:
    """LFM2 with experts (transformers 5.17 models/lfm2_moe); the first layers are dense."""
    config = Config(data)
    hidden, layers, types = _sizes(config, hidden=2048)
    dense: Mlp | Moe = swiglu(hidden, config.size("intermediate_size", default=7168))
    moe: Mlp | Moe = stacked_moe(
        hidden,
        config.size("num_experts", default=32),
        config.size("num_experts_per_tok", default=4),
        config.size("moe_intermediate_size", default=1792),
    )
    first = config.count("num_dense_layers", default=2)
    mlps = [dense if i < first else moe for i in range(layers)]
    return _stack(config, "lfm2_moe", hidden, types, mlps)


FAMILIES = {"lfm2": read_lfm2, "lfm2_moe": read_lfm2_moe}
