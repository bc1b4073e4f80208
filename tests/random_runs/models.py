"""Random config.json files: small models of every family that a trace can run."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .experts import (
    deepseek_v2,
    deepseek_v3,
    glm4_moe,
    gpt_oss,
    jamba,
    llama4_text,
    mixtral,
    olmoe,
    phimoe,
    qwen2_moe,
    qwen3_moe,
)
from .llama_rows import LLAMA_ROWS
from .older import bloom, falcon, gpt2, gpt_neo, gpt_neox, gptj, mpt, opt
from .sizes import (
    RATES,
    Config,
    fixed_heads,
    flip,
    llama_like,
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


def glm(rng: Random, seq: int) -> Config:
    """GLM-4-9B's first form."""
    return llama_like(rng, seq, "glm", attention_bias=flip(rng), pad_token_id=0)


def glm4(rng: Random, seq: int) -> Config:
    """GLM-4: norms before and behind the branches."""
    return llama_like(rng, seq, "glm4", attention_bias=flip(rng), pad_token_id=0)


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
