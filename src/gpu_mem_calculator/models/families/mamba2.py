"""Mamba-2: a stack of state-space mixers, with no attention and no MLP."""

from __future__ import annotations

from ..arch.arch import Arch
from ..arch.blocks import Linear, Norm, StateSpace, Weight
from .config import Config, ConfigError
from .mamba import backbone, mamba_layer


def mamba2_block(
    config: Config,
    hidden: int,
    inner: int,
    heads: int,
    *,
    state: int,
    groups: int,
    conv: int,
    bias: bool,
    conv_bias: bool,
    chunk: int,
    normed: bool = True,
) -> StateSpace:
    """z, x, B, C and dt from one projection, a convolution, a scan, a gated norm.

    The convolution runs over x, B and C: inner + 2 · groups · state channels.
    """
    config.divided(heads, "groups", groups)
    channels, embed, wide = inner + 2 * groups * state, ("embed", hidden), ("state", inner)
    weights = [
        Weight("dt_bias", (("state", heads),)),
        Weight("A_log", (("state", heads),)),
        Weight("D", (("state", heads),)),
        Weight("conv1d.weight", (("state", channels), ("conv_in", 1), ("conv", conv))),
        *Linear("in_proj", embed, ("state", inner + channels + heads), bias).weights(),
        *(Norm("norm", wide).weights() if normed else ()),
        *Linear("out_proj", wide, embed, bias).weights(),
    ]
    if conv_bias:
        weights.append(Weight("conv1d.bias", (("state", channels),)))
    return StateSpace(
        version=2,
        inner=inner,
        state=state,
        heads=heads,
        groups=groups,
        conv=conv,
        parameters=tuple(weights),
        chunk=chunk,
    )


def mamba2_mixer(config: Config, hidden: int) -> StateSpace:
    """Mamba2Mixer (transformers 5.17 models/mamba2)."""
    heads = config.size("num_heads", default=128)
    head_dim = config.size("head_dim", default=64)
    inner = hidden * config.size("expand", default=2)
    if inner != heads * head_dim:
        rule = f"must equal num_heads x head_dim = {heads * head_dim}"
        raise ConfigError(f"model.config: hidden_size x expand = {inner} {rule}")
    return mamba2_block(
        config,
        hidden,
        inner,
        heads,
        state=config.size("state_size", default=128),
        groups=config.size("n_groups", default=8),
        conv=config.size("conv_kernel", default=4),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias", default=True),
        chunk=config.size("chunk_size", default=256),
    )


def named_mixer(config: Config, hidden: int, *, normed: bool = True) -> StateSpace:
    """The same under the keys `mamba_*` (Bamba, Falcon-H1, Granite 4)."""
    inner = config.size("mamba_expand", default=2) * hidden
    inner = config.size("mamba_d_ssm", default=inner)
    heads = config.size("mamba_n_heads", default=128)
    head_dim = config.divided(inner, "mamba heads", heads)
    if config.get("mamba_d_head") not in (None, "auto"):
        head_dim = config.size("mamba_d_head")
    if heads * head_dim != inner:
        product = f"mamba_n_heads x mamba_d_head = {heads * head_dim}"
        raise ConfigError(f"model.config: {product} must be {inner}")
    return mamba2_block(
        config,
        hidden,
        inner,
        heads,
        state=config.size("mamba_d_state", default=256),
        groups=config.size("mamba_n_groups", default=1),
        conv=config.size("mamba_d_conv", default=4),
        bias=config.flag("mamba_proj_bias"),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        chunk=config.size("mamba_chunk_size", default=256),
        normed=normed,
    )


def read_mamba2(config: Config) -> Arch:
    """Mamba-2 (transformers 5.17 models/mamba2)."""
    hidden, fp32 = config.hidden(4096), config.flag("residual_in_fp32", default=True)
    layer = mamba_layer(mamba2_mixer(config, hidden), hidden, fp32_residual=fp32)
    return backbone(config, "mamba2", hidden, (layer,) * config.layers(64), vocab=32768)


FAMILIES = {"mamba2": read_mamba2}
