"""Mamba-2: a stack of state-space mixers, with no attention and no MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Norm, StateSpace, Weight
from .config import Config, ConfigError


def mamba2_mixer(config: Config, hidden: int) -> StateSpace:
    """Mamba2Mixer (transformers 5.17 models/mamba2): z, x, B, C and dt from one projection.

    The convolution runs over x, B and C: inner + 2 · groups · state channels.
    """
    heads = config.size("num_heads", default=128)
    head_dim = config.size("head_dim", default=64)
    state, groups = config.size("state_size", default=128), config.size("n_groups", default=8)
    conv = config.size("conv_kernel", default=4)
    inner = hidden * config.size("expand", default=2)
    if inner != heads * head_dim:
        raise ConfigError(
            f"model.config: hidden_size x expand = {inner} must equal num_heads x head_dim = "
            f"{heads * head_dim}"
        )
    config.divided(heads, "groups", groups)
    bias = config.flag("use_bias", default=False)
    channels, embed, wide = inner + 2 * groups * state, ("embed", hidden), ("state", inner)
    weights = [
        Weight("dt_bias", (("state", heads),)),
        Weight("A_log", (("state", heads),)),
        Weight("D", (("state", heads),)),
        Weight("conv1d.weight", (("state", channels), ("conv_in", 1), ("conv", conv))),
        *Linear("in_proj", embed, ("state", inner + channels + heads), bias).weights(),
        *Norm("norm", wide).weights(),
        *Linear("out_proj", wide, embed, bias).weights(),
    ]
    if config.flag("use_conv_bias", default=True):
        weights.append(Weight("conv1d.bias", (("state", channels),)))
    return StateSpace(
        version=2,
        inner=inner,
        state=state,
        heads=heads,
        groups=groups,
        conv=conv,
        parameters=tuple(weights),
        chunk=config.size("chunk_size", default=256),
    )


def read_mamba2(data: Mapping[str, Any]) -> Arch:
    """Mamba-2 (transformers 5.17 models/mamba2); it has no limit on length, so 2^20 stands in."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    vocab = config.size("vocab_size", default=32768)
    tied = config.flag("tie_word_embeddings", default=False)
    embed = ("embed", hidden)
    layer = Layer(
        kind="mamba",
        mixer=mamba2_mixer(config, hidden),
        mixer_name="mixer",
        norms=(("pre", Norm("norm", embed)),),
        fp32_residual=config.flag("residual_in_fp32", default=True),
    )
    return Arch(
        family="mamba2",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=config.size("max_position_embeddings", default=2**20),
        layers=(layer,) * config.size("num_hidden_layers", default=64),
        layer_prefix="backbone.layers",
        embedding=(Weight("backbone.embeddings.weight", (("vocab", vocab), embed)),),
        final_norm=Norm("backbone.norm_f", embed),
        head=None if tied else Linear("lm_head", embed, ("vocab", vocab)),
        tied=tied,
    )


FAMILIES = {"mamba2": read_mamba2}
