"""Random sizes, and what most families' config.json files share."""

from __future__ import annotations

from random import Random
from typing import Any

Config = dict[str, Any]
HEAD_DIMS = (16, 24, 32, 40, 48, 64, 64, 72, 80, 96, 112, 128, 128, 160, 192, 256)
WIDEST = 2048  # elements of a token between layers
TYPES = ("full_attention", "sliding_attention")
RATES = (0.0, 0.0, 0.1)  # of dropout


def log_uniform(rng: Random, low: int, high: int) -> int:
    """A whole number whose logarithm is uniform: as many small ones as large ones."""
    return round(low * (high / low) ** rng.random())


def vocab(rng: Random) -> int:
    """A vocabulary of 256 to 260,000 tokens, not only round numbers."""
    return log_uniform(rng, 256, 260_000)


def heads(rng: Random, *, grouped: bool = True) -> tuple[int, int, int]:
    """Query heads, key-value heads, head size."""
    head_dim = rng.choice(HEAD_DIMS)
    count = rng.randint(2, min(20, WIDEST // head_dim))
    shared = [n for n in range(1, count + 1) if count % n == 0]
    return count, rng.choice(shared) if grouped else count, head_dim


def llama_like(rng: Random, seq: int, model_type: str, **more: Any) -> Config:
    """The keys that Llama and its kin share; the hidden size need not be heads × head size."""
    count, kv_heads, head_dim = heads(rng)
    hidden = count * head_dim if rng.random() < 0.5 else log_uniform(rng, 96, WIDEST)
    return {
        "model_type": model_type,
        "num_hidden_layers": rng.randint(1, 4),
        "vocab_size": vocab(rng),
        "hidden_size": hidden,
        "num_attention_heads": count,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": log_uniform(rng, 64, 6000),
        "max_position_embeddings": max(seq, 2048),
        "tie_word_embeddings": rng.random() < 0.4,
        "attention_dropout": rng.choice(RATES),
        **more,
    }


def moe_like(rng: Random, seq: int, model_type: str, **more: Any) -> Config:
    """The same with sizes that grouped matmuls take: multiples of 16 bytes."""
    config = llama_like(rng, seq, model_type, **more)
    config["hidden_size"] = 16 * rng.randint(6, 64)
    config["intermediate_size"] = 16 * rng.randint(4, 96)
    return config


def whole_heads(config: Config) -> Config:
    """A hidden size that the heads divide, as some config classes ask for."""
    count = config["num_attention_heads"]
    config["hidden_size"] = max(1, config["hidden_size"] // count) * count
    return config


def fixed_heads(config: Config) -> Config:
    """Without a head size of its own: hidden / heads."""
    config["hidden_size"] = config["num_attention_heads"] * config.pop("head_dim")
    return config


def flip(rng: Random) -> bool:
    """True or false."""
    return rng.random() < 0.5


def types(rng: Random, layers: int) -> list[str]:
    """Full or sliding attention for each layer; both where there is more than one."""
    return [*rng.sample(TYPES, min(2, layers)), *rng.choices(TYPES, k=max(0, layers - 2))]


def window(rng: Random, seq: int) -> int:
    """A window that is shorter than the sequence as often as not."""
    return log_uniform(rng, 16, 8 * seq)


def sliding_like(rng: Random, seq: int, family: str) -> Config:
    """A Llama whose layers have full or sliding attention."""
    config = llama_like(rng, seq, family, sliding_window=window(rng, seq))
    return config | {"layer_types": types(rng, config["num_hidden_layers"])}
