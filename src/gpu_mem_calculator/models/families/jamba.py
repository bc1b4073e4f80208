"""Jamba: Mamba and attention layers in one period, dense and expert MLPs in another."""

from __future__ import annotations

from ..arch.arch import Arch, Layer
from ..arch.blocks import Mixer, Mlp, Moe, Norm, StateSpace
from .attention import head_counts, separate_attention
from .config import Config, ConfigError, Fields
from .frame import decoder, decoder_layer, stacked
from .mamba import mamba1_block, time_step_rank
from .mlps import gated_mlp, stacked_moe
from .norms import norms_at, rms


def periodic(config: Config, what: str, period: int, offset: int, layers: int) -> list[bool]:
    """Which layers stand at `offset` in their period."""
    period = config.size(f"{what}_layer_period", default=period)
    offset = config.count(f"{what}_layer_offset", default=offset)
    if offset >= period:
        rule = f"must be smaller than {what}_layer_period={period}"
        raise ConfigError(f"model.config.{what}_layer_offset={offset} {rule}")
    return [index % period == offset for index in range(layers)]


def jamba_mixer(config: Config, hidden: int) -> StateSpace:
    """JambaMambaMixer (transformers 5.17 models/jamba): Mamba-1 with norms on dt, B and C."""
    state = config.size("mamba_d_state", default=16)
    rank = time_step_rank(config, "mamba_dt_rank", hidden)
    sizes = {"dt": ("dt_rank", rank), "b": ("d_state", state), "c": ("d_state", state)}
    return mamba1_block(
        hidden,
        hidden * config.size("mamba_expand", default=2),
        rank=rank,
        state=state,
        conv=config.size("mamba_d_conv", default=4),
        bias=config.flag("mamba_proj_bias"),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        norms=tuple(Norm(f"{name}_layernorm", size) for name, size in sizes.items()),
    )


def jamba_layer(hidden: int, mixer: Mixer, mlp: Mlp | Moe) -> Layer:
    """One of the four kinds of layer."""
    norms = norms_at((("pre", "input_layernorm"), ("pre_mlp", "pre_ff_layernorm")), hidden)
    fields: Fields = {"mlp_name": "feed_forward", "norms": norms}
    if isinstance(mixer, StateSpace):
        fields |= {"kind": "mamba", "mixer_name": "mamba"}
    return decoder_layer(hidden, mixer, mlp, **fields)


def read_jamba(config: Config) -> Arch:
    """Jamba (transformers 5.17 models/jamba); attention has no positions at all."""
    hidden, layers, ffn = config.hidden(4096), config.layers(32), config.ffn(14336)
    activation, dropout = config.activation(), config.number("attention_dropout")
    counts = head_counts(config, hidden, heads=32, kv_heads=8)
    experts = config.size("num_experts", "num_local_experts", default=16)
    top_k = config.size("num_experts_per_tok", default=2)
    attention = separate_attention(hidden, *counts, dropout=dropout)
    mixers: tuple[Mixer, Mixer] = (jamba_mixer(config, hidden), attention)
    dense = gated_mlp(hidden, ffn, activation=activation)
    mlps: tuple[Mlp | Moe, Mlp | Moe] = (dense, dense)
    if experts > 1:
        moe = stacked_moe(hidden, experts, top_k, ffn, router="router", activation=activation)
        mlps = (dense, moe)
    places = periodic(config, "attn", 8, 4, layers), periodic(config, "expert", 2, 1, layers)
    stack = stacked(
        zip(*places, strict=True), lambda pair: jamba_layer(hidden, mixers[pair[0]], mlps[pair[1]])
    )
    sizes: Fields = {"vocab": 65536, "max_seq_len": 262144}
    norm = rms("model.final_layernorm", hidden)
    return decoder(config, "jamba", hidden, stack, **sizes, final_norm=norm)


FAMILIES = {"jamba": read_jamba}
