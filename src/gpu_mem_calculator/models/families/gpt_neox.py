"""GPT-NeoX and Pythia: fused qkv, rotary on a part of each head, parallel branches."""

from __future__ import annotations

from ..arch.arch import Arch, Layer
from .attention import fused_attention
from .config import Config
from .frame import decoder, decoder_layer, rotary_buffer
from .mlps import plain_mlp
from .norms import PRE, layer_norm, norms_at


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
        rotary_dim=rotary_dim,
        rotary_impl="joined",  # with what is not turned, even where that is nothing
        dropout=config.number("attention_dropout"),
        residual_dropout=dropout,
    )
    names = ("dense_h_to_4h", "dense_4h_to_h")
    ffn, activation = config.ffn(24576), config.activation("gelu")
    return decoder_layer(
        hidden,
        mixer,
        plain_mlp(hidden, ffn, activation, names, dropout=dropout),
        mixer_name="attention",
        norms=norms_at(PRE, hidden, layer_norm),
        parallel=config.flag("use_parallel_residual", default=True),
    )


def read_gpt_neox(config: Config) -> Arch:
    """GPT-NeoX (transformers 5.17 models/gpt_neox)."""
    hidden, heads = config.hidden(6144), config.size("num_attention_heads", default=64)
    rotary_dim = rotary_width(config, config.divided(hidden, "heads", heads))
    layer = gpt_neox_layer(config, hidden, heads, rotary_dim)
    return decoder(
        config,
        "gpt_neox",
        hidden,
        (layer,) * config.layers(44),
        words="gpt_neox.embed_in",
        blocks="gpt_neox.layers",
        final_norm=layer_norm("gpt_neox.final_layer_norm", hidden),
        vocab=50432,
        max_seq_len=2048,
        embedding_dropout=config.number("hidden_dropout"),
        buffers=rotary_buffer(rotary_dim, name="gpt_neox.rotary_emb"),
    )


FAMILIES = {"gpt_neox": read_gpt_neox}
