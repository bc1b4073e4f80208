"""Llama 3.2 Vision's text model: some layers read a picture instead of the text.

Parameters and cache; its activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Weight
from .attention import head_counts, head_norms, separate_attention
from .config import Config, ConfigError
from .frame import decoder
from .mlps import gated_mlp
from .norms import pre_norms

CROSS = (3, 8, 13, 18, 23, 28, 33, 38)
TILES, TILE_TOKENS = 4, 1601  # of one picture: 448 / 14 squared, and a class token


def read_mllama_text(data: Mapping[str, Any]) -> Arch:
    """Mllama's text model (transformers 5.17 models/mllama); 8 rows of the embedding are extra."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    layers = config.size("num_hidden_layers", default=40)
    counts = head_counts(config, hidden, heads=32, kv_heads=8)
    ffn = config.size("intermediate_size", default=14336)
    mlp = gated_mlp(hidden, ffn, activation=config.text("hidden_act", "silu"))
    plain = separate_attention(hidden, *counts, rotary_dim=counts[2])
    self_layer = Layer(kind="dense", mixer=plain, mlp=mlp, norms=pre_norms(hidden))
    cross = Layer(
        kind="cross",
        mixer=replace(
            plain, cross=True, rotary_dim=0, norms=head_norms(("q_norm", "k_norm"), counts[2])
        ),
        mixer_name="cross_attn",
        mlp=mlp,
        norms=pre_norms(hidden),
        extra=tuple(Weight(f"cross_attn_{w}_gate", (("one", 1),)) for w in ("attn", "mlp")),
    )
    places = config.get("cross_attention_layers")
    places = list(CROSS) if places is None else places
    if not isinstance(places, list) or not all(isinstance(place, int) for place in places):
        raise ConfigError(
            f"model.config.cross_attention_layers={places!r} must be a list of layer numbers"
        )
    stack = tuple(cross if i in places else self_layer for i in range(layers))
    vocab = config.size("vocab_size", default=128256)
    table = Weight("model.embed_tokens.weight", (("vocab", vocab + 8), ("embed", hidden)))
    return decoder(
        Config({**data, "tie_word_embeddings": False}),
        "mllama",
        hidden,
        stack,
        vocab=vocab,
        max_seq_len=131072,
        tied=False,
        rotary_dim=counts[2],
        embedding=(table,),
        trains=False,
        encoder_len=TILES * TILE_TOKENS,
    )


FAMILIES = {"mllama_text_model": read_mllama_text}
