"""Granite: Llama with multipliers on embeddings, attention, residuals and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from .blocks import head_counts, text
from .config import Config, ConfigError
from .llama import decoder, gated_mlp, pre_norms, separate_attention


def granite_layer(config: Config, hidden: int, heads: int, kv_heads: int, head_dim: int) -> Layer:
    """A Llama layer; its multipliers are numbers, which nothing keeps."""
    bias, mlp_bias = (config.flag(k, default=False) for k in ("attention_bias", "mlp_bias"))
    return Layer(
        kind="dense",
        mixer=separate_attention(
            hidden,
            heads,
            kv_heads,
            head_dim,
            bias=bias,
            output_bias=bias,
            rotary_dim=head_dim,
            dropout=config.number("attention_dropout"),
        ),
        mlp=gated_mlp(
            hidden,
            config.size("intermediate_size", default=11008),
            bias=mlp_bias,
            activation=text(config, "hidden_act", "silu"),
        ),
        norms=pre_norms(hidden),
    )


def read_granite(data: Mapping[str, Any]) -> Arch:
    """Granite (transformers 5.17 models/granite); logits are divided by `logits_scaling`."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=None)
    scaling = config.number("logits_scaling", default=1.0)
    if not scaling:
        raise ConfigError("model.config.logits_scaling=0 must not be zero; try 1")
    layer = granite_layer(config, hidden, heads, kv_heads, head_dim)
    layers = (layer,) * config.size("num_hidden_layers", default=32)
    return decoder(
        config,
        "granite",
        hidden,
        layers,
        vocab=32000,
        max_seq_len=2048,
        tied=False,
        rotary_dim=head_dim,
        logit_scale=1 / scaling,
    )


FAMILIES = {"granite": read_granite}
