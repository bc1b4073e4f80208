"""Small models of many families, and runs of them."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "intermediate_size": 704,
    "vocab_size": 1000,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "model_type": "llama", "tie_word_embeddings": True},
    "gpt2": {
        "model_type": "gpt2",
        "n_layer": 3,
        "n_embd": 256,
        "n_head": 8,
        "n_positions": 2048,
        "vocab_size": 1000,
    },
    "qwen2": {**BASE, "model_type": "qwen2"},
    "qwen3": {**BASE, "model_type": "qwen3", "head_dim": 64},
    "gemma2": {
        **BASE,
        "model_type": "gemma2",
        "head_dim": 32,
        "sliding_window": 128,
        "query_pre_attn_scalar": 32,
    },
    "gemma3": {
        **BASE,
        "model_type": "gemma3_text",
        "head_dim": 32,
        "sliding_window": 128,
        "num_hidden_layers": 7,
    },
    "mistral": {**BASE, "model_type": "mistral", "sliding_window": 128},
    "phi": {**BASE, "model_type": "phi", "num_key_value_heads": 8, "partial_rotary_factor": 0.5},
    "phi3": {**BASE, "model_type": "phi3", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "falcon": {
        "model_type": "falcon",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_kv_heads": 2,
        "vocab_size": 1000,
        "new_decoder_architecture": True,
        "bias": False,
        "alibi": False,
    },
    "bloom": {
        "model_type": "bloom",
        "n_layer": 3,
        "hidden_size": 256,
        "n_head": 8,
        "vocab_size": 1000,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "vocab_size": 1000,
        "rotary_pct": 0.25,
    },
    "opt": {
        "model_type": "opt",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "ffn_dim": 1024,
        "num_attention_heads": 8,
        "vocab_size": 1000,
        "word_embed_proj_dim": 256,
        "max_position_embeddings": 2048,
    },
    "mixtral": {**BASE, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "intermediate_size": 704,
        "moe_intermediate_size": 128,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
    },
}


def served(family: str = "llama", **inference: Any) -> dict[str, Any]:
    """A run file of a small model."""
    section = {"batch_size": 3, "prompt_len": 512, "new_tokens": 3, **inference}
    return {
        "model": {"config": FAMILIES[family]},
        "inference": section,
        "hardware": {"gpu": "h200"},
    }


def assisted(**inference: Any) -> dict[str, Any]:
    """A generation that a smaller model of the same vocabulary assists, four tokens a round."""
    small = {
        **FAMILIES["llama"],
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return {
        "batch_size": 1,
        "prompt_len": 300,
        "new_tokens": 6,
        "speculative_model": small,
        "num_speculative_tokens": 4,
        **inference,
    }
