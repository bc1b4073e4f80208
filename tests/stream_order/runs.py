"""Small runs whose estimated stream is compared with the traced one: model, precision, recompute,
engine.
"""

from __future__ import annotations

from typing import Any

WIDE = {"num_hidden_layers": 2, "hidden_size": 2048, "vocab_size": 32000}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        **WIDE,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
    "mistral": {
        **WIDE,
        "intermediate_size": 7168,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "sliding_window": None,
    },
    "qwen2": {
        **WIDE,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "gpt2": {"n_layer": 2, "n_embd": 1280, "n_head": 20, "n_positions": 2048, "vocab_size": 50257},
}
ENGINES: dict[str, tuple[int, dict[str, Any]]] = {
    "one GPU": (1, {"type": "pytorch_ddp"}),
    "DDP": (4, {"type": "pytorch_ddp"}),
    "FSDP": (4, {"type": "fsdp"}),
    "ZeRO-1": (4, {"type": "deepspeed", "zero_stage": 1}),
    "ZeRO-2": (4, {"type": "deepspeed", "zero_stage": 2}),
    "ZeRO-3": (4, {"type": "deepspeed", "zero_stage": 3}),
}
LORA = {"lora": {"r": 16, "target_modules": "all-linear"}}


def run_file(name: str) -> dict[str, Any]:
    """The run file of a name: "llama bf16_mixed full LoRA, ZeRO-2"; LoRA is under autocast."""
    what, _, engine = name.partition(", ")
    model, precision, recompute, *adapter = what.split()
    ranks, options = ENGINES[engine]
    return {
        "model": {
            "config": {"model_type": model, "max_position_embeddings": 4096, **MODELS[model]}
        },
        "training": {
            "batch_size": 2,
            "seq_len": 1536,
            "precision": precision,
            "activation_checkpointing": recompute,
            "attention": "sdpa",
            **({**LORA, "autocast": True} if adapter else {}),
        },
        "parallelism": {"data_parallel_size": ranks},
        "engine": options,
        "hardware": {"gpu": "h200", "num_gpus": ranks},
    }
