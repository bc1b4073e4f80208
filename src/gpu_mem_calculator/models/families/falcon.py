"""Falcon: both decoder architectures, rotary or ALiBi, one or many key-value heads."""

from __future__ import annotations

from ..arch.arch import Arch, Layer
from ..arch.blocks import Norm
from .attention import fused_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer, rotary_buffer
from .mlps import plain_mlp
from .norms import layer_norm, layer_norm_pair


def kv_head_count(config: Config, heads: int) -> int:
    """Key-value heads: the new architecture's own count, one (multi-query), or all."""
    if config.flag("new_decoder_architecture"):
        count = config.size("num_kv_heads", default=heads)
        config.divided(heads, "key-value heads", count)
        return count
    return 1 if config.flag("multi_query", default=True) else heads


def layer_norms(config: Config, hidden: int) -> tuple[tuple[str, Norm], ...]:
    """Two norms in sequence, two side by side, or one that both branches read."""
    if not config.flag("parallel_attn", default=True):
        return layer_norm_pair(hidden, "input_layernorm", "post_attention_layernorm")
    new = config.flag("new_decoder_architecture")
    if config.size("num_ln_in_parallel_attn", default=2 if new else 1) == 2:
        return layer_norm_pair(hidden, "ln_attn", "ln_mlp")
    return (("pre", layer_norm("input_layernorm", hidden)),)


def falcon_layer(config: Config, hidden: int, heads: int) -> Layer:
    """Parallel branches share one dropout, on their sum."""
    bias = config.flag("bias")
    alibi = config.flag("alibi")
    new = config.flag("new_decoder_architecture")
    parallel = new or config.flag("parallel_attn", default=True)
    dropout = config.number("attention_dropout")
    mixer = fused_attention(
        hidden,
        heads,
        kv_head_count(config, heads),
        hidden // heads,
        name="query_key_value",
        output="dense",
        bias=bias,
        rotary_dim=0 if alibi else hidden // heads,
        alibi=alibi,
        expanded=new,
        always_masked=True,
        float_softmax=False,
        dropout=dropout,
        residual_dropout=0.0 if parallel else dropout,
    )
    names = ("dense_h_to_4h", "dense_4h_to_h")
    ffn = config.size("ffn_hidden_size", default=4 * hidden)
    fields: Fields = {"bias": bias, "dropout": config.number("hidden_dropout")}
    mlp = plain_mlp(hidden, ffn, config.text("activation", "gelu"), names, **fields)
    rest: Fields = {"norms": layer_norms(config, hidden), "parallel": parallel}
    return decoder_layer(hidden, mixer, mlp, mixer_name="self_attention", **rest)


def read_falcon(config: Config) -> Arch:
    """Falcon (transformers 5.17 models/falcon); ALiBi models keep the rotary buffers too."""
    hidden = config.size("n_embed", "hidden_size", default=4544)
    heads = config.size("num_attention_heads", default=71)
    head_dim = config.divided(hidden, "heads", heads)
    return decoder(
        config,
        "falcon",
        hidden,
        (falcon_layer(config, hidden, heads),) * config.layers(32),
        words="transformer.word_embeddings",
        blocks="transformer.h",
        final_norm=layer_norm("transformer.ln_f", hidden),
        vocab=65024,
        max_seq_len=2048,
        tied=True,
        buffers=rotary_buffer(head_dim, name="transformer.rotary_emb"),
    )


FAMILIES = {"falcon": read_falcon}
