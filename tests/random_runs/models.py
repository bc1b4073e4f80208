"""Random config.json files: small models of every family that a trace can run."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .llama_rows import LLAMA_ROWS
from .older import bloom, falcon, gpt2, gpt_neo, gpt_neox, gptj, mpt, opt
from .sizes import (
    RATES,
    Config,
    fixed_heads,
    flip,
    llama_like,
    moe_like,
    sliding_like,
    types,
    vocab,
    whole_heads,
    window,
)


def llama(rng: Random, seq: int) -> Config:
    """Llama, with biases or without."""
    config = llama_like(rng, seq, "llama", attention_bias=flip(rng), mlp_bias=flip(rng))
    return whole_heads(config)


def mistral(rng: Random, seq: int) -> Config:
    """Mistral: every layer slides, or none."""
    return llama_like(rng, seq, "mistral", sliding_window=rng.choice((None, window(rng, seq))))


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


def qwen2(rng: Random, seq: int) -> Config:
    """Qwen2, from some layer on with a window."""
    return fixed_heads(
        llama_like(
            rng,
            seq,
            "qwen2",
            use_sliding_window=flip(rng),
            sliding_window=window(rng, seq),
            max_window_layers=rng.randint(0, 3),
        )
    )


def qwen3(rng: Random, seq: int) -> Config:
    """Qwen3."""
    return llama_like(rng, seq, "qwen3", attention_bias=flip(rng))


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


def gemma(rng: Random, seq: int) -> Config:
    """Gemma."""
    return llama_like(rng, seq, "gemma", attention_bias=flip(rng))


def gemma2(rng: Random, seq: int) -> Config:
    """Gemma 2, capped or not."""
    return whole_heads(
        llama_like(
            rng,
            seq,
            "gemma2",
            attn_logit_softcapping=rng.choice((None, 50.0)),
            final_logit_softcapping=rng.choice((None, 30.0)),
            sliding_window=window(rng, seq),
        )
    )


def gemma3_text(rng: Random, seq: int) -> Config:
    """Gemma 3."""
    config = whole_heads(llama_like(rng, seq, "gemma3_text", sliding_window=window(rng, seq)))
    return config | {"layer_types": types(rng, config["num_hidden_layers"])}


def phi(rng: Random, seq: int) -> Config:
    """Phi-2."""
    return fixed_heads(
        llama_like(
            rng,
            seq,
            "phi",
            qk_layernorm=flip(rng),
            partial_rotary_factor=rng.choice((0.5, 0.25, 1.0)),
            resid_pdrop=rng.choice(RATES),
            embd_pdrop=rng.choice(RATES),
        )
    )


def phi3(rng: Random, seq: int) -> Config:
    """Phi-3."""
    return fixed_heads(
        llama_like(
            rng,
            seq,
            "phi3",
            pad_token_id=0,
            resid_pdrop=rng.choice(RATES),
            partial_rotary_factor=rng.choice((1.0, 1.0, 0.75)),
            sliding_window=rng.choice((None, window(rng, seq))),
        )
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


def glm(rng: Random, seq: int) -> Config:
    """GLM-4-9B's first form."""
    return llama_like(rng, seq, "glm", attention_bias=flip(rng), pad_token_id=0)


def glm4(rng: Random, seq: int) -> Config:
    """GLM-4: norms before and behind the branches."""
    return llama_like(rng, seq, "glm4", attention_bias=flip(rng), pad_token_id=0)


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


def cohere(rng: Random, seq: int) -> Config:
    """Command R."""
    return fixed_heads(
        llama_like(
            rng,
            seq,
            "cohere",
            use_qk_norm=flip(rng),
            attention_bias=flip(rng),
            logit_scale=rng.choice((0.0625, 1.0)),
        )
    )


def cohere2(rng: Random, seq: int) -> Config:
    """Command R7B."""
    return sliding_like(rng, seq, "cohere2")


def olmo2(rng: Random, seq: int) -> Config:
    """OLMo 2."""
    return llama_like(rng, seq, "olmo2", attention_bias=flip(rng))


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


def starcoder2(rng: Random, seq: int) -> Config:
    """StarCoder2."""
    return fixed_heads(
        llama_like(
            rng,
            seq,
            "starcoder2",
            use_bias=flip(rng),
            sliding_window=rng.choice((None, seq // 2)),
            residual_dropout=rng.choice(RATES),
            embedding_dropout=rng.choice(RATES),
        )
    )


def granite(rng: Random, seq: int) -> Config:
    """Granite."""
    return fixed_heads(
        llama_like(
            rng,
            seq,
            "granite",
            attention_bias=flip(rng),
            mlp_bias=flip(rng),
            logits_scaling=rng.choice((1.0, 8.0)),
            embedding_multiplier=rng.choice((1.0, 12.0)),
            residual_multiplier=rng.choice((1.0, 0.22)),
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


def mamba2(rng: Random, seq: int) -> Config:
    """Mamba-2."""
    head_dim, groups = 16 * rng.randint(1, 4), rng.choice((1, 2))
    count = 2 * groups * rng.randint(1, 4)
    return {
        "model_type": "mamba2",
        "num_hidden_layers": rng.randint(1, 3),
        "vocab_size": vocab(rng),
        "hidden_size": head_dim * count // 2,
        "num_heads": count,
        "head_dim": head_dim,
        "state_size": 8 * rng.randint(1, 8),
        "n_groups": groups,
        "use_bias": flip(rng),
        "use_conv_bias": flip(rng),
        "tie_word_embeddings": flip(rng),
        "chunk_size": 64,
    }


MODELS: dict[str, Callable[[Random, int], Config]] = {
    maker.__name__: maker
    for maker in (
        llama,
        mistral,
        mixtral,
        qwen2,
        qwen3,
        qwen2_moe,
        qwen3_moe,
        gemma,
        gemma2,
        gemma3_text,
        phi,
        phi3,
        phimoe,
        glm,
        glm4,
        glm4_moe,
        deepseek_v2,
        deepseek_v3,
        cohere,
        cohere2,
        olmo2,
        olmoe,
        starcoder2,
        granite,
        gpt_oss,
        llama4_text,
        jamba,
        mamba2,
        gpt2,
        gpt_neo,
        gpt_neox,
        gptj,
        opt,
        bloom,
        falcon,
        mpt,
        *LLAMA_ROWS,
    )
}
