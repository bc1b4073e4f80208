"""Models of trials under a cap: published ones, cut to fewer layers, and random sizes."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from tests.random_runs.sizes import Config, flip, log_uniform

PUBLISHED = (
    *("llama3.2-1b", "llama3.2-3b", "llama2-7b", "llama3.1-8b", "tinyllama-1.1b", "smollm2-1.7b"),
    *("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b"),
    *("mistral-7b-v0.3", "gemma-2b", "gemma2-2b", "gemma3-1b", "phi-3-mini", "phi-4-mini"),
    *("gpt2-medium", "gpt2-large", "gpt2-xl", "pythia-1.4b", "olmo-2-7b", "granite-3.1-2b"),
)
# What a family's config.json has besides the sizes that Llama has, too.
FAMILIES: Mapping[str, Config] = {
    "llama": {},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"attention_bias": False},
    "mistral": {"sliding_window": None},
    "gemma": {"hidden_activation": "gelu_pytorch_tanh"},
    "phi3": {"pad_token_id": 0, "sliding_window": None},
    "olmo2": {},
    "gpt2": {},
}
FIXED_HEADS = ("qwen2", "phi3", "olmo2")  # hidden size / heads
VOCABULARIES = (32000, 32064, 50257, 50304, 100352, 128256, 151936)
HEAD_DIMS = (64, 64, 80, 96, 128, 128)
LAYER_KEYS = ("num_hidden_layers", "n_layer")
POSITION_KEYS = ("max_position_embeddings", "n_positions")
WIDEST = 5120


def draw_model(rng: Random, seq: int, *, even: bool = False) -> Config:
    """A published model with fewer layers, or one of random sizes.

    even: only sizes that tensor parallelism and quantization divide.
    """
    return _published(rng, seq) if rng.random() < 0.55 else _random(rng, seq, even=even)


def _published(rng: Random, seq: int) -> Config:
    found = find_model(ModelConfig(name=rng.choice(PUBLISHED))).config
    assert found is not None
    config: dict[str, Any] = dict(found)
    key = next(key for key in LAYER_KEYS if key in config)
    config[key] = min(config[key], 2 * rng.randint(2, 12))
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][: config[key]]
    return _longer(config, seq)


def _random(rng: Random, seq: int, *, even: bool) -> Config:
    family = rng.choice(tuple(FAMILIES))
    head_dim = 64 * rng.randint(1, 2) if even else rng.choice(HEAD_DIMS)
    count = 4 * rng.randint(2, min(10, WIDEST // head_dim // 4))
    shared = [n for n in range(1, count + 1) if count % n == 0 and not (even and n % 4)]
    hidden, unit = count * head_dim, 256 if even else 8
    ffn = unit * rng.randint(3 * hidden // (2 * unit), 4 * hidden // unit)
    vocab = rng.choice((*VOCABULARIES, log_uniform(rng, 4000, 160_000)))
    tied, layers = flip(rng), 2 * rng.randint(2, 12)
    if family == "gpt2":
        sizes: Config = {"n_layer": layers, "n_embd": hidden, "n_head": count, "n_inner": ffn}
        return _longer(
            {"model_type": family, **sizes, "n_positions": 1024, "vocab_size": vocab}, seq
        )
    config: Config = {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": count,
        "num_key_value_heads": rng.choice(shared),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
        **FAMILIES[family],
    }
    if family in FIXED_HEADS:
        del config["head_dim"]
    return _longer(config, seq)


def _longer(config: Config, seq: int) -> Config:
    """The config with positions for the whole sequence."""
    key = next((key for key in POSITION_KEYS if key in config), None)
    return config if key is None else {**config, key: max(config[key], seq)}


def model_name(config: Config) -> str:
    """A short name: the family and its layers."""
    layers = next(config[key] for key in LAYER_KEYS if key in config)
    return f"{config['model_type']}-{layers}l".replace("_", "-")
