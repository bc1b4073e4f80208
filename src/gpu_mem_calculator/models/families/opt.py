"""OPT: learned positions with an offset of two, norms before or (350M) after the branches."""

from __future__ import annotations

from ..arch.arch import Arch, Layer
from ..arch.blocks import Linear, Norm, Weight
from .attention import separate_attention
from .config import Config, Fields
from .frame import decoder_layer
from .mlps import plain_mlp
from .norms import layer_norm

OFFSET = 2  # OPTLearnedPositionalEmbedding.offset


def read_opt(config: Config) -> Arch:
    """OPT (transformers 5.17 models/opt)."""
    hidden = config.hidden(768)
    first = config.flag("do_layer_norm_before", default=True)
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    removed = config.flag("_remove_final_layer_norm")
    final: Norm | None = None
    if first and not removed:
        final = layer_norm("model.decoder.final_layer_norm", hidden, affine=affine)
    vocab = config.vocab(50272)
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
    layer = _layer(config, hidden, first=first, affine=affine)
    return Arch(
        family="opt",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=positions,
        layers=(layer,) * config.layers(12),
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
    names = zip(places, ("self_attn_layer_norm", "final_layer_norm"), strict=True)
    size, attended = config.divided(hidden, "heads", heads), config.number("attention_dropout")
    rates: Fields = {"dropout": attended, "residual_dropout": dropout}
    ffn, activation = (
        config.size("ffn_dim", default=3072),
        config.text("activation_function", "relu"),
    )
    return decoder_layer(
        hidden,
        separate_attention(hidden, heads, heads, size, bias=bias, output="out_proj", **rates),
        plain_mlp(hidden, ffn, activation, ("fc1", "fc2"), bias=bias, dropout=dropout),
        mlp_name="",
        norms=tuple((place, layer_norm(name, hidden, affine=affine)) for place, name in names),
    )


FAMILIES = {"opt": read_opt}
