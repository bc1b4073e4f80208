"""Mamba and Falcon-Mamba: a stack of first-generation state-space mixers.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, StateSpace, Weight
from .config import Config
from .frame import named_decoder
from .norms import rms


def mamba_mixer(config: Config, hidden: int) -> StateSpace:
    """MambaMixer (transformers 5.17 models/mamba): a low-rank time step from x."""
    inner = hidden * config.size("expand", default=2)
    state = config.size("state_size", default=16)
    conv = config.size("conv_kernel", default=4)
    auto = config.get("time_step_rank") in (None, "auto")
    rank = -(-hidden // 16) if auto else config.size("time_step_rank")
    bias = config.flag("use_bias", default=False)
    embed, wide = ("embed", hidden), ("state", inner)
    weights = [
        Weight("A_log", (wide, ("d_state", state))),
        Weight("D", (wide,)),
        Weight("conv1d.weight", (wide, ("conv_in", 1), ("conv", conv))),
        *Linear("in_proj", embed, ("state", 2 * inner), bias).weights(),
        *Linear("x_proj", wide, ("dt_rank", rank + 2 * state)).weights(),
        *Linear("dt_proj", ("dt_rank", rank), wide, bias=True).weights(),
        *Linear("out_proj", wide, embed, bias).weights(),
    ]
    if config.flag("use_conv_bias", default=True):
        weights.append(Weight("conv1d.bias", (wide,)))
    return StateSpace(version=1, inner=inner, state=state, heads=1, groups=1, conv=conv,
                      parameters=tuple(weights), dt_rank=rank)  # fmt: skip


def read_mamba(family: str, data: Mapping[str, Any]) -> Arch:
    """Mamba (transformers 5.17 models/mamba); Falcon-Mamba's further norms have no weights.

    It has no limit on length, so 2^20 stands in.
    """
    config = Config(data)
    hidden = config.size("hidden_size", default=768)
    layer = Layer(
        kind="mamba",
        mixer=mamba_mixer(config, hidden),
        mixer_name="mixer",
        norms=(("pre", rms("norm", hidden)),),
    )
    return named_decoder(
        config, family, hidden, (layer,) * config.size("num_hidden_layers", default=32),
        words="backbone.embeddings", blocks="backbone.layers", vocab=50280, tied=True,
        final_norm=rms("backbone.norm_f", hidden),
        max_seq_len=config.size("max_position_embeddings", default=2**20), trains=False,
    )  # fmt: skip


FAMILIES = {name: partial(read_mamba, name) for name in ("mamba", "falcon_mamba")}
