"""The models of the lives: sizes of published ones, and roughly what a run of them takes.

The sizes here only keep too large draws out, and tell how many runs fit on the machine at once.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def shape(
    kind: str, layers: int, hidden: int, ffn: int, heads: int, kv: int, vocab: int, **more: Any
) -> Row:
    """A config.json with the keys that most families share."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    } | more


MODELS: dict[str, Row] = {
    "llama1b": shape("llama", 16, 2048, 8192, 32, 8, 128256, head_dim=64),
    "llama3b": shape("llama", 28, 3072, 8192, 24, 8, 128256, head_dim=128),
    "tinyllama": shape("llama", 22, 2048, 5632, 32, 4, 32000, tie_word_embeddings=False),
    "smollm360m": shape("llama", 32, 960, 2560, 15, 5, 49152),
    "qwen2-05b": shape("qwen2", 24, 896, 4864, 14, 2, 151936),
    "qwen2-15b": shape("qwen2", 28, 1536, 8960, 12, 2, 151936),
    "qwen3-06b": shape("qwen3", 28, 1024, 3072, 16, 8, 151936, head_dim=128),
    "qwen3-17b": shape("qwen3", 28, 2048, 6144, 16, 8, 151936, head_dim=128),
    "qwen3-4b": shape("qwen3", 36, 2560, 9728, 32, 8, 151936, head_dim=128),
    "gemma2b": shape("gemma", 18, 2048, 16384, 8, 1, 256000, head_dim=256),
    "mistral2b": shape("mistral", 8, 4096, 14336, 32, 8, 32768, tie_word_embeddings=False),
    "phi15": shape("phi", 24, 2048, 8192, 32, 32, 51200, tie_word_embeddings=False),
    "phi3-mini": shape(
        *("phi3", 32, 3072, 8192, 32, 32, 32064), tie_word_embeddings=False, pad_token_id=0
    ),
    "gpt2-medium": {
        "model_type": "gpt2",
        "n_layer": 24,
        "n_embd": 1024,
        "n_head": 16,
        "n_positions": 2048,
        "vocab_size": 50257,
    },
    "gpt2-large": {
        "model_type": "gpt2",
        "n_layer": 36,
        "n_embd": 1280,
        "n_head": 20,
        "n_positions": 2048,
        "vocab_size": 50257,
    },
    "opt13b": {
        "model_type": "opt",
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "ffn_dim": 8192,
        "num_attention_heads": 32,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": 2048,
    },
}
WIDTH = {"float32": 4, "bfloat16": 2}


def sizes(model: Row) -> tuple[int, int, int]:
    """Layers, hidden size, vocabulary."""
    layers = model.get("num_hidden_layers") or model["n_layer"]
    return layers, model.get("hidden_size") or model["n_embd"], model["vocab_size"]


def parameters(model: Row) -> int:
    """The weights, without norms and biases."""
    layers, hidden, vocab = sizes(model)
    heads = model.get("num_attention_heads") or model["n_head"]
    kv = model.get("num_key_value_heads", heads)
    wide = model.get("head_dim") or hidden // heads
    ffn = model.get("intermediate_size") or model.get("ffn_dim") or 4 * hidden
    matrices = 2 if model["model_type"] in ("gpt2", "opt", "phi") else 3
    block = hidden * wide * 2 * (heads + kv) + matrices * hidden * ffn
    tables = 1 if model.get("tie_word_embeddings", True) else 2
    return layers * block + tables * vocab * hidden


def stored_bytes(config: Row) -> int:
    """The checkpoint's bytes on disk."""
    model = config["model"]["config"]
    return parameters(model) * WIDTH[model["dtype"]]


def activation_bytes(model: Row, tokens: int, recomputed: bool) -> int:
    """Of a forward and backward pass, logits and their copies among them."""
    layers, hidden, vocab = sizes(model)
    return tokens * (vocab * 16 + layers * hidden * (6 if recomputed else 44))


def rough_needs(row: Row) -> tuple[int, int, int]:
    """GPU memory, host memory and disk in bytes: above what a run takes."""
    config = row["config"]
    model = config["model"]["config"]
    count, vocab = parameters(model), model["vocab_size"]
    if "program" not in config:
        training = config["training"]
        tokens = training["batch_size"] * training["seq_len"]
        gpu = count * 20 + activation_bytes(model, tokens, False)
        return gpu + 2**30, count * 24 + 4 * 2**30, stored_bytes(config) + count * 16
    program = config["program"]
    args, data, load = program["args"], program["data"], program["load"]
    name = load.get("dtype", "float32")
    width = WIDTH[model["dtype"] if name == "auto" else name]
    adapters = "peft" in program
    states = count * width * (1 if adapters else 4) + (count // 4 if adapters else 0)
    recomputed = args.get("gradient_checkpointing", "trl" in program["tool"])
    longest = max(data["lengths"]) if "lengths" in data else data["seq_len"]
    batch = args.get("per_device_train_batch_size", 8)
    pairs = 4 if program["tool"] == "trl.DPOTrainer" else 1
    train = activation_bytes(model, longest * batch * pairs, recomputed)
    gpu, host = states + train, count * max(width, WIDTH[model["dtype"]]) * 2
    if "lengths" in data:
        return int(states + 2.5 * train) + 2**30, host + 4 * 2**30, stored_bytes(config)
    seq = data.get("eval_seq_len", data["seq_len"])
    logits = args.get("per_device_eval_batch_size", 8) * seq * vocab * 12 * pairs
    kept = data["eval_rows"] * seq * vocab * 4 if data.get("compute_metrics") else 0
    gpu = states + max(train, logits + 2 * kept)
    disk = stored_bytes(config) + count * width * (2 if adapters else 5)
    return gpu + 2**30, host + 3 * kept + 4 * 2**30, disk
