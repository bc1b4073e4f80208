"""Llama 3.2 Vision's text model: some layers read a picture instead of the text.

Parameters and cache; its activations are not modelled.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.arch import Arch
from ..arch.blocks import Weight
from .attention import head_counts, head_norms, separate_attention
from .config import Config
from .frame import decoder, decoder_layer
from .mlps import gated_mlp

CROSS = (3, 8, 13, 18, 23, 28, 33, 38)
TILES, TILE_TOKENS = 4, 1601  # of one picture: 448 / 14 squared, and a class token


def read_mllama_text(config: Config) -> Arch:
    """Mllama's text model (transformers 5.17 models/mllama); 8 rows of the embedding are extra."""
    hidden, layers = config.hidden(4096), config.layers(40)
    counts = head_counts(config, hidden, heads=32, kv_heads=8)
    mlp = gated_mlp(hidden, config.ffn(14336), activation=config.activation())
    plain = separate_attention(hidden, *counts, rotary_dim=counts[2])
    self_layer = decoder_layer(hidden, plain, mlp)
    norms = head_norms(("q_norm", "k_norm"), counts[2])
    cross = decoder_layer(
        hidden,
        replace(plain, cross=True, rotary_dim=0, norms=norms),
        mlp,
        kind="cross",
        mixer_name="cross_attn",
        extra=tuple(Weight(f"cross_attn_{w}_gate", (("one", 1),)) for w in ("attn", "mlp")),
    )
    places = config.layer_numbers("cross_attention_layers", CROSS)
    vocab = config.vocab(128256)
    table = Weight("model.embed_tokens.weight", (("vocab", vocab + 8), ("embed", hidden)))
    return decoder(
        Config({**config.data, "tie_word_embeddings": False}),
        "mllama",
        hidden,
        tuple(cross if i in places else self_layer for i in range(layers)),
        vocab=vocab,
        max_seq_len=131072,
        rotary_dim=counts[2],
        embedding=(table,),
        trains=False,
        encoder_len=TILES * TILE_TOKENS,
    )


FAMILIES = {"mllama_text_model": read_mllama_text}
