"""torchtitan's Llama 3 models, by `model.flavor` (0.2.2 models/llama3/__init__.py llama3_args)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Flavor(Struct, frozen=True, kw_only=True):
    """The arguments of one model, with the names and defaults of models/llama3/model/args.py."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int | None = None
    vocab_size: int = 128256
    multiple_of: int = 256
    ffn_dim_multiplier: float | None = None


FLAVORS = {
    "debugmodel": Flavor(dim=256, n_layers=6, n_heads=16, vocab_size=2048),
    "8B": Flavor(
        dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, ffn_dim_multiplier=1.3, multiple_of=1024
    ),
    "70B": Flavor(
        dim=8192, n_layers=80, n_heads=64, n_kv_heads=8, ffn_dim_multiplier=1.3, multiple_of=4096
    ),
    "405B": Flavor(
        dim=16384, n_layers=126, n_heads=128, n_kv_heads=8, ffn_dim_multiplier=1.2, multiple_of=4096
    ),
}


def flavor_shape(flavor: Flavor) -> dict[str, Any]:
    """The shape by keys of the model section (models/llama3/model/model.py FeedForward)."""
    wide = int(2 * 4 * flavor.dim / 3)
    wide = int((flavor.ffn_dim_multiplier or 1) * wide)
    return {
        "num_layers": flavor.n_layers,
        "hidden_size": flavor.dim,
        "num_attention_heads": flavor.n_heads,
        "num_key_value_heads": flavor.n_kv_heads or flavor.n_heads,
        "intermediate_size": -(-wide // flavor.multiple_of) * flavor.multiple_of,
        "vocab_size": flavor.vocab_size,
        "tie_word_embeddings": False,
    }


def flavor_config(flavor: Flavor) -> dict[str, Any]:
    """The same as a config.json of transformers."""
    shape = flavor_shape(flavor)
    shape["num_hidden_layers"] = shape.pop("num_layers")
    return {"model_type": "llama", **shape, "max_position_embeddings": 131072}
