"""LFM2: short convolutions with some attention, dense and with experts.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..arch.arch import Arch, Layer
from ..arch.blocks import Linear, Mlp, Moe, Recurrence, Weight
from .attention import head_counts, head_norms, separate_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer, stacked
from .mlps import mlp_block, stacked_moe
from .norms import norms_at, rms
from .windows import FULL, indexed, mixed_types


def short_conv(config: Config, hidden: int) -> Recurrence:
    """Lfm2ShortConv: a gated convolution over `conv_L_cache` tokens."""
    taps = config.size("conv_L_cache", default=3)
    bias = config.flag("conv_bias")
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
    return mlp_block(hidden, ffn, ("w1", "w3"), "w2")


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
    config: Config, family: str, hidden: int, types: list[str], mlps: Sequence[Mlp | Moe]
) -> Arch:
    counts = head_counts(config, hidden, heads=32, kv_heads=8)
    heads = head_norms(("q_layernorm", "k_layernorm"), counts[2])
    fields: Fields = {"output": "out_proj", "norms": heads, "rotary_dim": counts[2]}
    attention, conv = separate_attention(hidden, *counts, **fields), short_conv(config, hidden)
    norms = norms_at((("pre", "operator_norm"), ("pre_mlp", "ffn_norm")), hidden)

    def layer(pair: tuple[str, Mlp | Moe]) -> Layer:
        mixer, name = (attention, "self_attn") if pair[0] == FULL else (conv, "conv")
        names = {"mixer_name": name, "mlp_name": "feed_forward"}
        return decoder_layer(hidden, mixer, pair[1], norms=norms, **names)

    tied = config.flag("tie_embedding", default=config.flag("tie_word_embeddings", default=True))
    return decoder(
        Config({**config.data, "tie_word_embeddings": tied}),
        family,
        hidden,
        stacked(zip(types, mlps, strict=True), layer),
        vocab=65536,
        max_seq_len=128000,
        rotary_dim=counts[2],
        final_norm=rms("model.embedding_norm", hidden),
        trains=False,
    )


def _sizes(config: Config, *, hidden: int) -> tuple[int, int, list[str]]:
    """Width, number of layers, and the mixer of each layer."""
    hidden = config.hidden(hidden)
    layers = config.layers(32)
    usual = indexed(config, "full_attn_idxs", layers, range(layers))
    return hidden, layers, mixed_types(config, "layer_types", layers, usual)


def read_lfm2(config: Config) -> Arch:
    """LFM2 (transformers 5.17 models/lfm2)."""
    hidden, layers, types = _sizes(config, hidden=2560)
    return _stack(config, "lfm2", hidden, types, [feed_forward(config, hidden)] * layers)


def read_lfm2_moe(config: Config) -> Arch:
    """LFM2 with experts (transformers 5.17 models/lfm2_moe); the first layers are dense."""
    hidden, layers, types = _sizes(config, hidden=2048)
    dense = swiglu(hidden, config.ffn(7168))
    experts = config.size("num_experts", default=32)
    top_k = config.size("num_experts_per_tok", default=4)
    moe = stacked_moe(hidden, experts, top_k, config.size("moe_intermediate_size", default=1792))
    first = config.count("num_dense_layers", default=2)
    mlps = [dense if i < first else moe for i in range(layers)]
    return _stack(config, "lfm2_moe", hidden, types, mlps)


FAMILIES = {"lfm2": read_lfm2, "lfm2_moe": read_lfm2_moe}
