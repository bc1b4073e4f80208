"""BLOOM: ALiBi, fused qkv, a norm behind the embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from .attention import fused_attention
from .config import Config
from .frame import named_decoder
from .mlps import plain_mlp
from .norms import layer_norm, layer_norm_pair


def bloom_layer(config: Config, hidden: int) -> Layer:
    """Attention is eager only; the GELU keeps nothing but its input (GeLUFunction)."""
    heads = config.size("n_head", "num_attention_heads", default=8)
    dropout = config.number("hidden_dropout")
    mixer = fused_attention(
        hidden,
        heads,
        heads,
        config.divided(hidden, "heads", heads),
        name="query_key_value",
        output="dense",
        bias=True,
        output_bias=True,
        alibi=True,
        sdpa=False,
        dropout=config.number("attention_dropout"),
        residual_dropout=dropout,
    )
    up, down = "dense_h_to_4h", "dense_4h_to_h"
    return Layer(
        kind="dense",
        mixer=mixer,
        mixer_name="self_attention",
        mlp=plain_mlp(hidden, 4 * hidden, "bloom_gelu", up=up, down=down, dropout=dropout),
        norms=layer_norm_pair(hidden, "input_layernorm", "post_attention_layernorm"),
    )


def read_bloom(data: Mapping[str, Any]) -> Arch:
    """BLOOM (transformers 5.17 models/bloom)."""
    config = Config(data)
    hidden = config.size("n_embed", "hidden_size", default=64)
    layers = config.size("n_layer", "num_hidden_layers", default=2)
    return named_decoder(
        config,
        "bloom",
        hidden,
        (bloom_layer(config, hidden),) * layers,
        words="transformer.word_embeddings",
        blocks="transformer.h",
        final_norm=layer_norm("transformer.ln_f", hidden),
        vocab=250880,
        max_seq_len=config.size("seq_length", "max_position_embeddings", default=2048),
        tied=True,
        embedding_norm=layer_norm("transformer.word_embeddings_layernorm", hidden),
    )


FAMILIES = {"bloom": read_bloom}
