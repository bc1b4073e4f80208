"""Random config.json files of the families that are Llama with other numbers."""

from __future__ import annotations

from random import Random

from .sizes import (
    RATES,
    Config,
    fixed_heads,
    flip,
    llama_like,
    moe_like,
    sliding_like,
    types,
    whole_heads,
    window,
)


def smollm3(rng: Random, seq: int) -> Config:
    """SmolLM3: some layers without rotary."""
    return llama_like(
        rng,
        seq,
        "smollm3",
        attention_bias=flip(rng),
        mlp_bias=flip(rng),
        pad_token_id=0,
        no_rope_layer_interval=rng.randint(2, 4),
    )


def seed_oss(rng: Random, seq: int) -> Config:
    """Seed-OSS."""
    return llama_like(
        rng,
        seq,
        "seed_oss",
        attention_bias=flip(rng),
        attention_out_bias=flip(rng),
        mlp_bias=flip(rng),
        residual_dropout=rng.choice(RATES),
    )


def apertus(rng: Random, seq: int) -> Config:
    """Apertus."""
    return llama_like(rng, seq, "apertus", attention_bias=flip(rng))


def exaone4(rng: Random, seq: int) -> Config:
    """EXAONE 4: layers slide with rotary, others have neither."""
    config = llama_like(rng, seq, "exaone4", sliding_window=rng.choice((None, window(rng, seq))))
    kinds = types(rng, config["num_hidden_layers"])
    full = ["full_attention"] * len(kinds)
    return config | {"layer_types": full if config["sliding_window"] is None else kinds}


def stablelm(rng: Random, seq: int) -> Config:
    """StableLM."""
    return fixed_heads(
        llama_like(
            rng,
            seq,
            "stablelm",
            use_qkv_bias=flip(rng),
            use_parallel_residual=flip(rng),
            partial_rotary_factor=rng.choice((0.25, 0.5)),
            hidden_dropout=rng.choice(RATES),
        )
    )


def olmo(rng: Random, seq: int) -> Config:
    """OLMo."""
    return fixed_heads(llama_like(rng, seq, "olmo", attention_bias=flip(rng)))


def olmo3(rng: Random, seq: int) -> Config:
    """OLMo 3."""
    return sliding_like(rng, seq, "olmo3")


def ernie4_5(rng: Random, seq: int) -> Config:
    """ERNIE 4.5."""
    return llama_like(rng, seq, "ernie4_5", use_bias=flip(rng))


def arcee(rng: Random, seq: int) -> Config:
    """Arcee."""
    return whole_heads(llama_like(rng, seq, "arcee", attention_bias=flip(rng), mlp_bias=flip(rng)))


def nemotron(rng: Random, seq: int) -> Config:
    """Nemotron."""
    return llama_like(rng, seq, "nemotron", attention_bias=flip(rng), mlp_bias=flip(rng))


def jais2(rng: Random, seq: int) -> Config:
    """Jais 2."""
    return llama_like(rng, seq, "jais2", attention_bias=flip(rng), mlp_bias=flip(rng))


def hunyuan_v1_dense(rng: Random, seq: int) -> Config:
    """Hunyuan, dense."""
    return llama_like(rng, seq, "hunyuan_v1_dense", attention_bias=flip(rng))


def ministral(rng: Random, seq: int) -> Config:
    """Ministral."""
    config = llama_like(rng, seq, "ministral", sliding_window=window(rng, seq))
    return config | {"layer_types": types(rng, config["num_hidden_layers"])}


def ministral3(rng: Random, seq: int) -> Config:
    """Ministral 3."""
    return llama_like(rng, seq, "ministral3", sliding_window=rng.choice((None, window(rng, seq))))


def dots1(rng: Random, seq: int) -> Config:
    """dots.llm1."""
    return moe_like(
        rng,
        seq,
        "dots1",
        n_routed_experts=rng.randint(4, 16),
        num_experts_per_tok=2,
        n_shared_experts=rng.randint(0, 2),
        moe_intermediate_size=16 * rng.randint(2, 64),
        first_k_dense_replace=rng.randint(0, 2),
        n_group=1,
        topk_group=1,
        attention_bias=flip(rng),
        sliding_window=None,
    )


def minimax_m2(rng: Random, seq: int) -> Config:
    """MiniMax-M2."""
    return moe_like(
        rng, seq, "minimax_m2", num_local_experts=rng.randint(4, 16), num_experts_per_tok=2
    )


LLAMA_ROWS = (
    smollm3,
    seed_oss,
    apertus,
    exaone4,
    stablelm,
    olmo,
    olmo3,
    ernie4_5,
    arcee,
    nemotron,
    jais2,
    hunyuan_v1_dense,
    ministral,
    ministral3,
    dots1,
    minimax_m2,
)
