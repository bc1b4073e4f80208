"""Mamba and Falcon-Mamba: a stack of first-generation state-space mixers.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..arch.arch import Arch, Layer
from ..arch.blocks import Linear, Norm, StateSpace, Weight
from .config import Config
from .frame import decoder
from .norms import rms


def mamba1_block(
    hidden: int,
    inner: int,
    *,
    rank: int,
    state: int,
    conv: int,
    bias: bool,
    conv_bias: bool,
    norms: tuple[Norm, ...] = (),
) -> StateSpace:
    """A Mamba-1 mixer with a time step of low rank; `norms` are Jamba's, on dt, B and C."""
    embed, wide, low = ("embed", hidden), ("state", inner), ("dt_rank", rank)
    weights = [
        Weight("A_log", (wide, ("d_state", state))),
        Weight("D", (wide,)),
        Weight("conv1d.weight", (wide, ("conv_in", 1), ("conv", conv))),
        *Linear("in_proj", embed, ("state", 2 * inner), bias).weights(),
        *Linear("x_proj", wide, ("dt_rank", rank + 2 * state)).weights(),
        *Linear("dt_proj", low, wide, bias=True).weights(),
        *Linear("out_proj", wide, embed, bias).weights(),
        *(weight for norm in norms for weight in norm.weights()),
    ]
    if conv_bias:
        weights.append(Weight("conv1d.bias", (wide,)))
    sizes = {"inner": inner, "state": state, "conv": conv, "dt_rank": rank}
    return StateSpace(version=1, heads=1, groups=1, parameters=tuple(weights), **sizes)


def time_step_rank(config: Config, name: str, hidden: int) -> int:
    """The rank that the key gives, or hidden / 16 rounded up."""
    auto = config.get(name) in (None, "auto")
    return -(-hidden // 16) if auto else config.size(name)


def mamba_mixer(config: Config, hidden: int) -> StateSpace:
    """MambaMixer (transformers 5.17 models/mamba): a low-rank time step from x."""
    return mamba1_block(
        hidden,
        hidden * config.size("expand", default=2),
        rank=time_step_rank(config, "time_step_rank", hidden),
        state=config.size("state_size", default=16),
        conv=config.size("conv_kernel", default=4),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias", default=True),
    )


def mamba_layer(mixer: StateSpace, hidden: int, *, fp32_residual: bool = False) -> Layer:
    """A norm and a mixer."""
    norms = (("pre", rms("norm", hidden)),)
    return Layer(
        kind="mamba", mixer=mixer, mixer_name="mixer", norms=norms, fp32_residual=fp32_residual
    )


def backbone(
    config: Config, family: str, hidden: int, layers: tuple[Layer, ...], **rest: Any
) -> Arch:
    """The model around a stack of Mamba; it has no limit on length, so 2^20 stands in."""
    rest |= {"words": "backbone.embeddings", "blocks": "backbone.layers"}
    rest |= {"max_seq_len": 2**20, "final_norm": rms("backbone.norm_f", hidden)}
    return decoder(config, family, hidden, layers, **rest)


def read_mamba(family: str, config: Config) -> Arch:
    """Mamba (transformers 5.17 models/mamba); Falcon-Mamba's further norms have no weights."""
    hidden = config.hidden(768)
    layers = (mamba_layer(mamba_mixer(config, hidden), hidden),) * config.layers(32)
    return backbone(config, family, hidden, layers, vocab=50280, tied=True, trains=False)


FAMILIES = {name: partial(read_mamba, name) for name in ("mamba", "falcon_mamba")}
