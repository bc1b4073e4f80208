"""Jamba: Mamba and attention layers in one period, dense and expert MLPs in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Mixer, Mlp, Moe, Norm, StateSpace
from .attention import head_counts, separate_attention
from .config import Config, ConfigError
from .frame import decoder
from .mamba import mamba1_block, time_step_rank
from .mlps import gated_mlp, stacked_moe


def periodic(config: Config, what: str, period: int, offset: int, layers: int) -> list[bool]:
    """Which layers stand at `offset` in their period."""
    period = config.size(f"{what}_layer_period", default=period)
    offset = config.count(f"{what}_layer_offset", default=offset)
    if offset >= period:
        raise ConfigError(
            f"model.config.{what}_layer_offset={offset} must be smaller than "
            f"{what}_layer_period={period}"
        )
    return [index % period == offset for index in range(layers)]


def jamba_mixer(config: Config, hidden: int) -> StateSpace:
    """JambaMambaMixer (transformers 5.17 models/jamba): Mamba-1 with norms on dt, B and C."""
    state = config.size("mamba_d_state", default=16)
    rank = time_step_rank(config, "mamba_dt_rank", hidden)
    return mamba1_block(
        hidden,
        hidden * config.size("mamba_expand", default=2),
        rank=rank,
        state=state,
        conv=config.size("mamba_d_conv", default=4),
        bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        norms=(
            Norm("dt_layernorm", ("dt_rank", rank)),
            Norm("b_layernorm", ("d_state", state)),
            Norm("c_layernorm", ("d_state", state)),
        ),
    )


def jamba_layer(hidden: int, mixer: Mixer, mlp: Mlp | Moe) -> Layer:
    """One of the four kinds of layer."""
    mamba = isinstance(mixer, StateSpace)
    embed = ("embed", hidden)
    return Layer(
        kind="mamba" if mamba else "moe" if isinstance(mlp, Moe) else "dense",
        mixer=mixer,
        mixer_name="mamba" if mamba else "self_attn",
        mlp=mlp,
        mlp_name="feed_forward",
        norms=(
            ("pre", Norm("input_layernorm", embed)),
            ("pre_mlp", Norm("pre_ff_layernorm", embed)),
        ),
    )


def read_jamba(data: Mapping[str, Any]) -> Arch:
    """Jamba (transformers 5.17 models/jamba); attention has no positions at all."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    layers = config.size("num_hidden_layers", default=32)
    ffn = config.size("intermediate_size", default=14336)
    activation = config.text("hidden_act", "silu")
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=8)
    num_experts = config.size("num_experts", "num_local_experts", default=16)
    top_k = config.size("num_experts_per_tok", default=2)
    attention = separate_attention(
        hidden, heads, kv_heads, head_dim, dropout=config.number("attention_dropout")
    )
    mixers: tuple[Mixer, Mixer] = (jamba_mixer(config, hidden), attention)
    dense = gated_mlp(hidden, ffn, activation=activation)
    mlps: tuple[Mlp | Moe, Mlp | Moe] = (dense, dense)
    if num_experts > 1:
        moe = stacked_moe(hidden, num_experts, top_k, ffn, router="router", activation=activation)
        mlps = (dense, moe)
    kinds = {(a, e): jamba_layer(hidden, mixers[a], mlps[e]) for a in (0, 1) for e in (0, 1)}
    places = zip(
        periodic(config, "attn", 8, 4, layers),
        periodic(config, "expert", 2, 1, layers),
        strict=True,
    )
    return decoder(
        config,
        "jamba",
        hidden,
        tuple(kinds[a, e] for a, e in places),
        vocab=65536,
        max_seq_len=262144,
        tied=False,
        rotary_dim=0,
        buffers=(),
        final_norm=Norm("model.final_layernorm", ("embed", hidden)),
    )


FAMILIES = {"jamba": read_jamba}
