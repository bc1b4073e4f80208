"""A GGUF file's metadata as the config.json of the same model.

llama.cpp b10586 (b21e4de7) gguf-py/gguf/constants.py: `general.architecture`, and under its name
the sizes.
"""

from __future__ import annotations

from typing import Any

from .bounds import HubError
from .headers import GgufHeader

# llama.cpp's name of an architecture, and transformers' model_type.
SAME = "llama qwen2 qwen3 gemma gemma2 phi3 starcoder2 cohere2 glm4 olmo2 granite falcon bloom mpt"
FAMILIES = {name: name for name in (*SAME.split(), "mamba2", "gpt2")}
FAMILIES |= {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text"}
FAMILIES |= {"deepseek2": "deepseek_v3", "gpt-oss": "gpt_oss", "gptneox": "gpt_neox"}
FAMILIES |= {"command-r": "cohere"}
KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.key_length": "head_dim",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.sliding_window": "sliding_window",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "attention.value_length_mla": "v_head_dim",
    "ssm.state_size": "state_size",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.group_count": "n_groups",
}
LATENT_ONLY = ("qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")
# Sizes that transformers names differently, by family.
RENAMED = {
    "mixtral": {"num_experts": "num_local_experts"},
    "gpt_oss": {"num_experts": "num_local_experts"},
    "deepseek_v3": {"num_experts": "n_routed_experts"},
}


def gguf_config(file: GgufHeader, where: str) -> dict[str, Any]:
    """The config.json of the model in a GGUF file, with its sizes only."""
    name = str(file.metadata.get("general.architecture"))
    if name not in FAMILIES:
        advice = "give the model's config.json instead"
        raise HubError(f"{where}: GGUF architecture {name!r} is not known here; {advice}")
    family = FAMILIES[name]
    values = {known: file.metadata.get(f"{name}.{key}") for key, known in KEYS.items()}
    sizes: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    required = ("block_count", "embedding_length")
    missing = [key for key in required if KEYS[key] not in sizes]
    if missing:
        raise HubError(f"{where}: its header has no {name}.{missing[0]}, which every model has")
    if name == "llama" and sizes.get("num_experts"):
        family = "mixtral"
    if family != "deepseek_v3":
        sizes = {key: value for key, value in sizes.items() if key not in LATENT_ONLY}
    elif "v_head_dim" in sizes:
        key_dim = file.metadata[f"{name}.attention.key_length_mla"]
        sizes["qk_nope_head_dim"] = key_dim - sizes["qk_rope_head_dim"]
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
        sizes.pop("head_dim", None)
    renamed = RENAMED.get(family, {})
    shapes = {one.name: one.shape for one in file.tensors}
    vocab = shapes.get("token_embd.weight", (0, 0))[-1]
    return {
        "model_type": family,
        **{renamed.get(key, key): value for key, value in sizes.items()},
        "vocab_size": vocab,
        "tie_word_embeddings": "output.weight" not in shapes,
    }
