"""Random config.json files of families with experts."""

from __future__ import annotations

from random import Random

from .sizes import Config, fixed_heads, flip, moe_like, types, window


def mixtral(rng: Random, seq: int) -> Config:
    """Mixtral."""
    experts = rng.randint(2, 12)
    return moe_like(
        rng,
        seq,
        "mixtral",
        num_local_experts=experts,
        num_experts_per_tok=rng.randint(1, min(4, experts)),
        router_jitter_noise=rng.choice((0.0, 0.0, 0.01)),
        sliding_window=rng.choice((None, window(rng, seq))),
    )


def qwen2_moe(rng: Random, seq: int) -> Config:
    """Qwen2-MoE: a shared expert behind a gate."""
    experts = rng.randint(2, 12)
    return fixed_heads(
        moe_like(
            rng,
            seq,
            "qwen2_moe",
            num_experts=experts,
            num_experts_per_tok=rng.randint(1, 2),
            moe_intermediate_size=16 * rng.randint(2, 64),
            qkv_bias=flip(rng),
            shared_expert_intermediate_size=16 * rng.randint(2, 64),
            decoder_sparse_step=rng.randint(1, 2),
        )
    )


def qwen3_moe(rng: Random, seq: int) -> Config:
    """Qwen3-MoE."""
    experts = rng.randint(2, 16)
    return moe_like(
        rng,
        seq,
        "qwen3_moe",
        num_experts=experts,
        num_experts_per_tok=rng.randint(1, min(4, experts)),
        moe_intermediate_size=16 * rng.randint(2, 64),
        decoder_sparse_step=rng.randint(1, 2),
    )


def phimoe(rng: Random, seq: int) -> Config:
    """Phi-3.5-MoE, which picks two experts."""
    return fixed_heads(
        moe_like(
            rng,
            seq,
            "phimoe",
            num_local_experts=rng.randint(2, 10),
            num_experts_per_tok=2,
            attention_bias=flip(rng),
            lm_head_bias=flip(rng),
            sliding_window=None,
            input_jitter_noise=rng.choice((0.0, 0.01)),
            router_jitter_noise=0.01,
        )
    )


def glm4_moe(rng: Random, seq: int) -> Config:
    """GLM-4.5."""
    return moe_like(
        rng,
        seq,
        "glm4_moe",
        n_routed_experts=rng.randint(4, 16),
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=16 * rng.randint(2, 64),
        use_qk_norm=flip(rng),
        attention_bias=flip(rng),
        first_k_dense_replace=rng.randint(0, 2),
        n_group=1,
        topk_group=1,
    )


def deepseek(rng: Random, seq: int, model_type: str) -> Config:
    """DeepSeek's latent attention with experts."""
    count = rng.randint(1, 16)
    return moe_like(
        rng,
        seq,
        model_type,
        num_attention_heads=count,
        num_key_value_heads=count,
        n_routed_experts=8 * rng.randint(1, 2),
        num_experts_per_tok=rng.randint(1, 4),
        n_shared_experts=rng.randint(1, 2),
        first_k_dense_replace=rng.randint(0, 2),
        q_lora_rank=rng.choice((None, 16 * rng.randint(2, 32))),
        n_group=1,
        topk_group=1,
        kv_lora_rank=16 * rng.randint(2, 32),
        qk_nope_head_dim=8 * rng.randint(2, 16),
        qk_rope_head_dim=8 * rng.randint(1, 8),
        v_head_dim=8 * rng.randint(2, 16),
        moe_intermediate_size=16 * rng.randint(2, 64),
    ) | {"head_dim": None}


def deepseek_v2(rng: Random, seq: int) -> Config:
    """DeepSeek-V2."""
    config = deepseek(rng, seq, "deepseek_v2")
    config["hidden_size"] = 16 * config["num_attention_heads"] * rng.randint(1, 5)
    return {k: v for k, v in config.items() if k != "head_dim"}


def deepseek_v3(rng: Random, seq: int) -> Config:
    """DeepSeek-V3."""
    config = deepseek(rng, seq, "deepseek_v3")
    return {k: v for k, v in config.items() if k != "head_dim"}


def olmoe(rng: Random, seq: int) -> Config:
    """OLMoE."""
    experts = rng.randint(2, 16)
    return fixed_heads(
        moe_like(
            rng,
            seq,
            "olmoe",
            num_experts=experts,
            num_experts_per_tok=rng.randint(1, min(4, experts)),
            attention_bias=flip(rng),
            clip_qkv=rng.choice((None, 8.0)),
        )
    )


def gpt_oss(rng: Random, seq: int) -> Config:
    """gpt-oss."""
    config = moe_like(
        rng,
        seq,
        "gpt_oss",
        num_local_experts=rng.randint(2, 12),
        num_experts_per_tok=2,
        attention_bias=flip(rng),
        sliding_window=window(rng, seq),
    )
    return config | {"layer_types": types(rng, config["num_hidden_layers"])}


def llama4_text(rng: Random, seq: int) -> Config:
    """Llama 4."""
    return moe_like(
        rng,
        seq,
        "llama4_text",
        num_local_experts=rng.randint(2, 6),
        num_experts_per_tok=1,
        intermediate_size_mlp=16 * rng.randint(4, 96),
        use_qk_norm=flip(rng),
        interleave_moe_layer_step=rng.randint(1, 2),
        attention_chunk_size=window(rng, seq),
    )


def jamba(rng: Random, seq: int) -> Config:
    """Jamba: Mamba and attention, dense and experts."""
    experts = rng.choice((1, 4))
    return fixed_heads(
        moe_like(
            rng,
            seq,
            "jamba",
            num_experts=experts,
            num_experts_per_tok=min(2, experts),
            attn_layer_period=2,
            attn_layer_offset=rng.randint(0, 1),
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=8 * rng.randint(1, 2),
            use_mamba_kernels=False,
        )
    )
