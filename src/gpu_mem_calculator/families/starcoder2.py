"""StarCoder 2: grouped queries, a two-matrix MLP, layer norms, biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from .blocks import head_counts, same_windows, text
from .config import Config
from .llama import decoder, separate_attention
from .older import layer_norm, layer_norm_pair, plain_mlp


def starcoder2_layer(
    config: Config, hidden: int, heads: int, kv_heads: int, head_dim: int
) -> Layer:
    """Llama's order of things with biases, layer norms and one input matrix in the MLP."""
    bias = config.flag("use_bias", default=True)
    dropout = config.number("residual_dropout")
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
            residual_dropout=dropout,
        ),
        mlp=plain_mlp(
            hidden,
            config.size("intermediate_size", default=12288),
            text(config, "hidden_act", "gelu_pytorch_tanh"),
            up="c_fc",
            down="c_proj",
            bias=bias,
            dropout=dropout,
        ),
        norms=layer_norm_pair(hidden, "input_layernorm", "post_attention_layernorm"),
    )


def read_starcoder2(data: Mapping[str, Any]) -> Arch:
    """StarCoder 2 (transformers 5.17 models/starcoder2)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=3072)
    layers = config.size("num_hidden_layers", default=30)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=24, kv_heads=2)
    return decoder(
        config,
        "starcoder2",
        hidden,
        (starcoder2_layer(config, hidden, heads, kv_heads, head_dim),) * layers,
        vocab=49152,
        tied=True,
        max_seq_len=4096,
        rotary_dim=head_dim,
        final_norm=layer_norm("model.norm", hidden),
        embedding_dropout=config.number("embedding_dropout"),
        windows=same_windows(config, layers, None),
    )


FAMILIES = {"starcoder2": read_starcoder2}
