"""T5 (T5ForConditionalGeneration): an encoder and a decoder stack that share one embedding."""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Linear, Mlp, Norm, Weight
from .config import Config, ConfigError
from .mlps import mlp_block
from .norms import norms_at


def t5_attention(config: Config, hidden: int) -> Attention:
    """q, k, v and o without biases; heads x d_kv need not be d_model."""
    heads = config.size("num_heads", "num_attention_heads", default=8)
    head_dim = config.size("d_kv", "head_dim", default=64)
    embed, inner = ("embed", hidden), ("heads", heads * head_dim)
    q, k, v = (Linear(name, embed, inner) for name in "qkv")
    return Attention(
        inputs=(q, k, v),
        output=Linear("o", inner, embed),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        dropout=config.number("dropout_rate", default=0.1),
        residual_dropout=config.number("dropout_rate", default=0.1),
    )


def t5_mlp(config: Config, hidden: int) -> Mlp:
    """`feed_forward_proj`: "relu", or "gated-gelu" with two input matrices."""
    ffn = config.size("d_ff", default=2048)
    name = config.get("feed_forward_proj") or "relu"
    gate, _, activation = str(name).rpartition("-")
    if gate not in ("", "gated") or not activation:
        rule = "must be an activation or 'gated-' and one"
        raise ConfigError(f"model.config.feed_forward_proj={name!r} {rule}")
    names = ("wi_0", "wi_1") if gate else ("wi",)
    activation = "gelu_new" if name == "gated-gelu" else activation
    dropout = config.number("dropout_rate", default=0.1)
    return mlp_block(hidden, ffn, names, "wo", activation=activation, dropout=dropout)


def t5_layer(config: Config, hidden: int, *, first: bool, cross: bool) -> Layer:
    """One block; the first of a stack holds the relative positions that all of it uses."""
    mixer, mlp = t5_attention(config, hidden), t5_mlp(config, hidden)
    last = 2 if cross else 1
    last_norm = f"layer.{last}.layer_norm"
    embed, extra = ("embed", hidden), []
    if first:
        buckets = config.size("relative_attention_num_buckets", default=32)
        dims = (("position", buckets), ("heads", mixer.heads))
        extra.append(Weight("layer.0.SelfAttention.relative_attention_bias.weight", dims))
    if cross:
        extra.append(Weight("layer.1.layer_norm.weight", (embed,)))
    return Layer(
        kind="decoder" if cross else "encoder",
        mixer=mixer,
        mixer_name="layer.0.SelfAttention",
        beside=(("layer.1.EncDecAttention", replace(mixer, cross=True)),) if cross else (),
        mlp=mlp,
        mlp_name=f"layer.{last}.DenseReluDense",
        norms=norms_at((("pre", "layer.0.layer_norm"), ("pre_mlp", last_norm)), hidden),
        extra=tuple(extra),
    )


def read_mt5(config: Config) -> Arch:
    """mT5 (transformers 5.17 models/mt5): T5 with other defaults."""
    sizes = {"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6}
    config = config.with_defaults({**sizes, "feed_forward_proj": "gated-gelu"})
    return replace(read_t5(config), family="mt5")


def read_t5(config: Config) -> Arch:
    """T5 (transformers 5.17 models/t5).

    T5Config ties the head to the embedding whatever `tie_word_embeddings` says. (A checkpoint
    that holds another head, as v1.1 ones do, keeps it: from_pretrained then does not tie.)
    """
    hidden = config.size("d_model", "hidden_size", default=512)
    vocab = config.vocab(32128)
    encoder = config.size("num_layers", "num_hidden_layers", default=6)
    decoder = config.size("num_decoder_layers", default=encoder)
    layers: list[Layer] = []
    for count, cross in ((encoder, False), (decoder, True)):
        rest = t5_layer(config, hidden, first=False, cross=cross)
        layers += [t5_layer(config, hidden, first=True, cross=cross), *(rest,) * (count - 1)]
    embed, counts = ("embed", hidden), {"encoder": encoder, "decoder": decoder}
    return Arch(
        family="t5",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=config.size("n_positions", default=512),
        encoder_len=config.size("n_positions", default=512),
        layers=tuple(layers),
        layer_names=tuple(f"{stack}.block.{i}" for stack, n in counts.items() for i in range(n)),
        embedding=(Weight("shared.weight", (("vocab", vocab), embed)),),
        embedding_dropout=config.number("dropout_rate", default=0.1),
        final_norm=Norm("decoder.final_layer_norm", embed),
        head_extra=(Weight("encoder.final_layer_norm.weight", (embed,)),),
        tied=True,
        trains=False,
    )


FAMILIES = {"t5": read_t5, "mt5": read_mt5}
