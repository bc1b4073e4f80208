"""GPT-NeoX and Pythia: fused qkv, rotary on a part of each head, parallel branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from .attention import fused_attention
from .config import Config
from .frame import named_decoder, rotary_buffer
from .mlps import plain_mlp
from .norms import layer_norm, layer_norm_pair


def rotary_width(config: Config, head_dim: int) -> int:
    """`rotary_pct` of a head, unless the rope settings name the part themselves."""
    part = config.number("rotary_pct", default=0.25)
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    return int(head_dim * config.section(name).number("partial_rotary_factor", default=part))


def gpt_neox_layer(config: Config, hidden: int, heads: int, rotary_dim: int) -> Layer:
    """Parallel branches read the same input, each through a separate norm."""
    bias = config.flag("attention_bias", default=True)
    dropout = config.number("hidden_dropout")
    mixer = fused_attention(
        hidden,
        heads,
        heads,
        hidden // heads,
        name="query_key_value",
        output="dense",
        bias=bias,
        output_bias=bias,
        rotary_dim=rotary_dim,
        rotary_impl="joined",  # with what is not turned, even where that is nothing
        dropout=config.number("attention_dropout"),
        residual_dropout=dropout,
    )
    ffn = config.size("intermediate_size", default=24576)
    activation = config.text("hidden_act", "gelu")
    up, down = "dense_h_to_4h", "dense_4h_to_h"
    return Layer(
        kind="dense",
        mixer=mixer,
        mixer_name="attention",
        mlp=plain_mlp(hidden, ffn, activation, up=up, down=down, dropout=dropout),
        norms=layer_norm_pair(hidden, "input_layernorm", "post_attention_layernorm"),
        parallel=config.flag("use_parallel_residual", default=True),
    )


def read_gpt_neox(data: Mapping[str, Any]) -> Arch:
    """GPT-NeoX (transformers 5.17 models/gpt_neox)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=6144)
    heads = config.size("num_attention_heads", default=64)
    rotary_dim = rotary_width(config, config.divided(hidden, "heads", heads))
    layer = gpt_neox_layer(config, hidden, heads, rotary_dim)
    return named_decoder(
        config,
        "gpt_neox",
        hidden,
        (layer,) * config.size("num_hidden_layers", default=44),
        words="gpt_neox.embed_in",
        blocks="gpt_neox.layers",
        final_norm=layer_norm("gpt_neox.final_layer_norm", hidden),
        vocab=50432,
        max_seq_len=config.size("max_position_embeddings", default=2048),
        tied=False,
        embedding_dropout=config.number("hidden_dropout"),
        buffers=rotary_buffer(rotary_dim, name="gpt_neox.rotary_emb"),
    )


FAMILIES = {"gpt_neox": read_gpt_neox}
