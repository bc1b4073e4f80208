"""OPT: learned positions with an offset of two, norms before or (350M) after the branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Norm, Weight
from .attention import separate_attention
from .config import Config
from .mlps import plain_mlp
from .norms import layer_norm

OFFSET = 2  # OPTLearnedPositionalEmbedding.offset


def read_opt(data: Mapping[str, Any]) -> Arch:
    """OPT (transformers 5.17 models/opt)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=768)
    first = config.flag("do_layer_norm_before", default=True)
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    removed = config.flag("_remove_final_layer_norm", default=False)
    final: Norm | None = None
    if first and not removed:
        final = layer_norm("model.decoder.final_layer_norm", hidden, affine=affine)
    vocab = config.size("vocab_size", default=50272)
    word = ("embed", config.size("word_embed_proj_dim", default=hidden))
    tied = config.flag("tie_word_embeddings", default=True)
    positions = config.size("max_position_embeddings", default=2048)
    embed = ("embed", hidden)
    embedding = [
        Weight("model.decoder.embed_tokens.weight", (("vocab", vocab), word)),
        Weight("model.decoder.embed_positions.weight", (("position", positions + OFFSET), embed)),
    ]
    after: tuple[Weight, ...] = ()
    if word != embed:
        embedding.append(Weight("model.decoder.project_in.weight", (embed, word)))
        after = (Weight("model.decoder.project_out.weight", (word, embed)),)
    return Arch(
        family="opt",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=positions,
        layers=(_layer(config, hidden, first=first, affine=affine),)
        * config.size("num_hidden_layers", default=12),
        layer_prefix="model.decoder.layers",
        embedding=tuple(embedding),
        final_norm=final,
        head=None if tied else Linear("lm_head", word, ("vocab", vocab)),
        head_extra=after,
        tied=tied,
    )


def _layer(config: Config, hidden: int, *, first: bool, affine: bool) -> Layer:
    """One decoder layer; its MLP stands in the layer itself (fc1, fc2)."""
    heads = config.size("num_attention_heads", default=12)
    bias = config.flag("enable_bias", default=True)
    dropout = config.number("dropout", default=0.1)
    places = ("pre", "pre_mlp") if first else ("after", "after_mlp")
    names = ("self_attn_layer_norm", "final_layer_norm")
    return Layer(
        kind="dense",
        mixer=separate_attention(
            hidden,
            heads,
            heads,
            config.divided(hidden, "heads", heads),
            bias=bias,
            output_bias=bias,
            output="out_proj",
            dropout=config.number("attention_dropout"),
            residual_dropout=dropout,
        ),
        mlp=plain_mlp(
            hidden,
            config.size("ffn_dim", default=3072),
            config.text("activation_function", "relu"),
            up="fc1",
            down="fc2",
            bias=bias,
            dropout=dropout,
        ),
        mlp_name="",
        norms=tuple(
            (place, layer_norm(name, hidden, affine=affine))
            for place, name in zip(places, names, strict=True)
        ),
    )


FAMILIES = {"opt": read_opt}
