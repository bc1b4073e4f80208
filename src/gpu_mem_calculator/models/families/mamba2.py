"""Mamba-2: a stack of state-space mixers, with no attention and no MLP."""

from __future__ import annotations

from typing import NamedTuple

from ..arch.arch import Arch
from ..arch.blocks import Linear, Norm, StateSpace, Weight
from .config import Config, ConfigError
from .mamba import backbone, mamba_layer


class Mamba2Keys(NamedTuple):
    """The keys of a mixer's sizes and biases in a config.json; sizes with the family's defaults."""

    state: tuple[str, int]
    groups: tuple[str, int]
    conv: tuple[str, int]
    chunk: tuple[str, int]
    bias: str = "use_bias"
    conv_bias: str = "use_conv_bias"


OWN = Mamba2Keys(("state_size", 128), ("n_groups", 8), ("conv_kernel", 4), ("chunk_size", 256))
NAMED = Mamba2Keys(
    *(("mamba_d_state", 256), ("mamba_n_groups", 1), ("mamba_d_conv", 4)),
    chunk=("mamba_chunk_size", 256),
    bias="mamba_proj_bias",
    conv_bias="mamba_conv_bias",
)


def mamba2_block(
    config: Config, hidden: int, inner: int, heads: int, keys: Mamba2Keys, *, normed: bool = True
) -> StateSpace:
    """z, x, B, C and dt from one projection, a convolution, a scan, a gated norm.

    The convolution runs over x, B and C: inner + 2 · groups · state channels.
    """
    sizes = (config.size(*names.split(), default=default) for names, default in keys[:4])
    state, groups, conv, chunk = sizes
    bias, conv_bias = config.flag(keys.bias), config.flag(keys.conv_bias, default=True)
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
    return mamba2_block(config, hidden, inner, heads, OWN)


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
    return mamba2_block(config, hidden, inner, heads, NAMED, normed=normed)


def read_mamba2(config: Config) -> Arch:
    """Mamba-2 (transformers 5.17 models/mamba2)."""
    hidden, fp32 = config.hidden(4096), config.flag("residual_in_fp32", default=True)
    layer = mamba_layer(mamba2_mixer(config, hidden), hidden, fp32_residual=fp32)
    return backbone(config, "mamba2", hidden, (layer,) * config.layers(64), vocab=32768)


FAMILIES = {"mamba2": read_mamba2}
