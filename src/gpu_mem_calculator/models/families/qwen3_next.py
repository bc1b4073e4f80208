"""Qwen3-Next and Qwen3.5: three layers of Gated DeltaNet, then one of gated attention.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Linear, Mixer, Mlp, Moe, NormImpl, Recurrence, Weight
from .attention import head_counts, head_norms, partial_rotary, separate_attention
from .config import Config
from .frame import decoder, decoder_layer, stacked
from .mlps import gated_mlp
from .norms import pre_norms, rms_float
from .qwen import gated_shared_moe, sparse_layers
from .windows import FULL, LINEAR, every, mixed_types

NORM: NormImpl = "rms_float"
WIDTHS = {"ffn": 512, "shared_ffn": 512}


def gated_attention(config: Config, hidden: int, *, heads: int, kv_heads: int) -> Attention:
    """Qwen3NextAttention: the query projection gives a gate as wide as the query beside it."""
    counts = head_counts(config, hidden, heads=heads, kv_heads=kv_heads, head_dim=256)
    bias = config.flag("attention_bias")
    plain = separate_attention(
        hidden,
        *counts,
        bias=bias,
        norms=head_norms(("q_norm", "k_norm"), counts[2], NORM),
        rotary_dim=partial_rotary(config, counts[2], 0.25),
        dropout=config.number("attention_dropout"),
    )
    both = Linear("q_proj", ("embed", hidden), ("heads", 2 * counts[0] * counts[2]), bias)
    return replace(plain, inputs=(both, *plain.inputs[1:]))


def gated_delta(config: Config, hidden: int, *, fused: bool) -> Recurrence:
    """Qwen3NextGatedDeltaNet; `fused`: q, k, v and z from one projection, b and a from another.

    The convolution runs over q, k and v.
    """
    key_dim = config.size("linear_key_head_dim", default=128)
    value_dim = config.size("linear_value_head_dim", default=128)
    key_heads = config.size("linear_num_key_heads", default=16)
    heads = config.size("linear_num_value_heads", default=32)
    conv = config.size("linear_conv_kernel_dim", default=4)
    config.divided(heads, "key heads", key_heads)
    channels, inner = 2 * key_heads * key_dim + heads * value_dim, heads * value_dim
    embed, one = ("embed", hidden), ("state", heads)
    names = {"in_proj_qkv": channels, "in_proj_z": inner, "in_proj_b": heads, "in_proj_a": heads}
    if fused:
        names = {"in_proj_qkvz": channels + inner, "in_proj_ba": 2 * heads}
    linears = [Linear(name, embed, ("state", width)) for name, width in names.items()]
    linears.append(Linear("out_proj", ("state", inner), embed))
    return Recurrence(
        kind="gated_delta",
        parameters=(
            Weight("dt_bias", (one,)),
            Weight("A_log", (one,)),
            Weight("conv1d.weight", (("state", channels), ("conv_in", 1), ("conv", conv))),
            Weight("norm.weight", (("head_dim", value_dim),)),
            *(weight for linear in linears for weight in linear.weights()),
        ),
        heads=heads,
        key_heads=key_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        channels=channels,
        conv=conv,
    )


def _delta_stack(
    config: Config,
    family: str,
    hidden: int,
    mixers: dict[str, Mixer],
    mlps: Sequence[Mlp | Moe],
    vocab: int,
) -> Arch:
    """One MLP a layer, and the mixer that `layer_types` says.

    A module that predicts further tokens is one more layer with attention, three norms and a
    projection from 2 x hidden; it has no copies of the embedding and the head.
    """
    layers = len(mlps)
    usual = every(layers, config.size("full_attention_interval", default=4))
    types = mixed_types(config, "layer_types", layers, usual)
    norms = pre_norms(hidden, NORM)

    def layer(pair: tuple[str, Mlp | Moe]) -> Layer:
        name = "self_attn" if pair[0] == FULL else "linear_attn"
        return decoder_layer(hidden, mixers[pair[0]], pair[1], mixer_name=name, norms=norms)

    modules = config.count("mtp_num_hidden_layers", "num_nextn_predict_layers")
    last = layer((FULL, mlps[-1])).num_parameters
    return decoder(
        config,
        family,
        hidden,
        stacked(zip(types, mlps, strict=True), layer),
        vocab=vocab,
        max_seq_len=32768,
        rotary_dim=mixers[FULL].rotary_dim,
        final_norm=rms_float("model.norm", hidden),
        trains=False,
        mtp_parameters=modules * (last + 3 * hidden + 2 * hidden**2),
    )


def _mixers(config: Config, hidden: int, *, kv_heads: int, fused: bool = False) -> dict[str, Mixer]:
    attention = gated_attention(config, hidden, heads=16, kv_heads=kv_heads)
    return {FULL: attention, LINEAR: gated_delta(config, hidden, fused=fused)}


def read_qwen3_next(config: Config) -> Arch:
    """Qwen3-Next (transformers 5.17 models/qwen3_next)."""
    hidden = config.hidden(2048)
    dense = gated_mlp(hidden, config.ffn(5632), activation=config.activation())
    moe = gated_shared_moe(config, hidden, experts=512, top_k=10, **WIDTHS)
    mlps = [moe if flag else dense for flag in sparse_layers(config, config.layers(48))]
    mixers = _mixers(config, hidden, kv_heads=2, fused=True)
    return _delta_stack(config, "qwen3_next", hidden, mixers, mlps, 151936)


def read_qwen3_5_text(config: Config) -> Arch:
    """Qwen3.5, dense (transformers 5.17 models/qwen3_5)."""
    hidden = config.hidden(4096)
    mlp = gated_mlp(hidden, config.ffn(12288), activation=config.activation())
    mixers, mlps = _mixers(config, hidden, kv_heads=4), [mlp] * config.layers(32)
    return _delta_stack(config, "qwen3_5", hidden, mixers, mlps, 248320)


def read_qwen3_5_moe_text(config: Config) -> Arch:
    """Qwen3.5 with experts (transformers 5.17 models/qwen3_5_moe)."""
    hidden = config.hidden(2048)
    moe = gated_shared_moe(config, hidden, experts=256, top_k=8, **WIDTHS)
    mixers, mlps = _mixers(config, hidden, kv_heads=2), [moe] * config.layers(40)
    return _delta_stack(config, "qwen3_5_moe", hidden, mixers, mlps, 248320)


FAMILIES = {
    "qwen3_next": read_qwen3_next,
    "qwen3_5_text": read_qwen3_5_text,
    "qwen3_5_moe_text": read_qwen3_5_moe_text,
}
