"""GPT-Neo: learned positions, global and local attention in turn, a causal mask in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Weight
from .attention import separate_attention
from .config import Config, ConfigError
from .frame import layer_buffers, named_decoder
from .mlps import plain_mlp
from .norms import layer_norm, layer_norm_pair

KINDS = ("global", "local")


def attention_kinds(config: Config, layers: int) -> list[str]:
    """`attention_types` written out: [[["global", "local"], 12]] is 24 layers."""
    kinds = config.per_layer("attention_layers", layers, [KINDS[i % 2] for i in range(layers)])
    types = config.get("attention_types")
    if types is not None:
        try:
            each = (k for names, times in types if names for _ in range(times) for k in names)
            kinds = list(islice(each, layers + 1))
        except (TypeError, ValueError):
            raise ConfigError(
                f'model.config.attention_types={types!r} must look like [[["global", "local"], 12]]'
            ) from None
    if len(kinds) != layers or not all(kind in KINDS for kind in kinds):
        gives = "more" if len(kinds) > layers else len(kinds)
        raise ConfigError(
            f"model.config.attention_types must give 'global' or 'local' for all {layers} layers; "
            f"it gives {gives}"
        )
    return kinds


def gpt_neo_layer(config: Config, hidden: int) -> Layer:
    """Scores are computed in fp32, and only by the eager code (or FlashAttention 2)."""
    heads = config.size("num_heads", "num_attention_heads", default=16)
    dropout = config.number("resid_dropout")
    mixer = separate_attention(
        hidden,
        heads,
        heads,
        config.divided(hidden, "heads", heads),
        output="out_proj",
        output_bias=True,
        sdpa=False,
        float_scores=True,
        float_softmax=False,
        dropout=config.number("attention_dropout"),
        residual_dropout=dropout,
    )
    ffn = config.size("intermediate_size", default=4 * hidden)
    activation = config.text("activation_function", "gelu_new")
    return Layer(
        kind="dense",
        mixer=mixer,
        mixer_name="attn.attention",
        mlp=plain_mlp(hidden, ffn, activation, up="c_fc", down="c_proj", dropout=dropout),
        norms=layer_norm_pair(hidden, "ln_1", "ln_2"),
    )


def read_gpt_neo(data: Mapping[str, Any]) -> Arch:
    """GPT-Neo (transformers 5.17 models/gpt_neo)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2048)
    layers = config.size("num_layers", "num_hidden_layers", default=24)
    length = config.size("max_position_embeddings", default=2048)
    kinds = attention_kinds(config, layers)
    window = config.size("window_size", default=256)
    vocab, embed = config.size("vocab_size", default=50257), ("embed", hidden)
    return named_decoder(
        config,
        "gpt_neo",
        hidden,
        (gpt_neo_layer(config, hidden),) * layers,
        words="transformer.wte",
        blocks="transformer.h",
        final_norm=layer_norm("transformer.ln_f", hidden),
        vocab=vocab,
        max_seq_len=length,
        tied=True,
        embedding=(
            Weight("transformer.wte.weight", (("vocab", vocab), embed)),
            Weight("transformer.wpe.weight", (("position", length), embed)),
        ),
        embedding_dropout=config.number("embed_dropout"),
        windows=tuple(window if k == "local" else None for k in kinds) if "local" in kinds else (),
        buffers=layer_buffers(
            "transformer.h", "attn.attention.bias", layers, (1, 1, length, length), 8
        ),
    )


FAMILIES = {"gpt_neo": read_gpt_neo}
