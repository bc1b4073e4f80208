"""Random config.json files of the families that came before Llama."""

from __future__ import annotations

from random import Random

from .sizes import RATES, Config, flip, heads, log_uniform, vocab


def early(rng: Random, seq: int, **names: str) -> Config:
    """The sizes of an older family under its own names."""
    count, _, head_dim = heads(rng)
    sizes = {
        "layers": rng.randint(1, 4),
        "hidden": count * head_dim,
        "heads": count,
        "positions": max(seq, 1024),
        "inner": log_uniform(rng, 64, 6000),
    }
    found: Config = {key: sizes[what] for what, key in names.items()}
    return found | {"vocab_size": vocab(rng), "tie_word_embeddings": flip(rng)}


def gpt2(rng: Random, seq: int) -> Config:
    """GPT-2."""
    sizes = early(
        rng,
        seq,
        layers="n_layer",
        hidden="n_embd",
        heads="n_head",
        positions="n_positions",
        inner="n_inner",
    )
    rates = {key: rng.choice(RATES) for key in ("attn_pdrop", "resid_pdrop", "embd_pdrop")}
    return {"model_type": "gpt2"} | sizes | rates


def gpt_neo(rng: Random, seq: int) -> Config:
    """GPT-Neo."""
    sizes = early(
        rng,
        seq,
        layers="num_layers",
        hidden="hidden_size",
        heads="num_heads",
        positions="max_position_embeddings",
        inner="intermediate_size",
    )
    kinds = [rng.choice(("global", "local")) for _ in range(sizes["num_layers"])]
    rates = {k: rng.choice(RATES) for k in ("attention_dropout", "resid_dropout", "embed_dropout")}
    return {"model_type": "gpt_neo", "attention_types": [[kinds, 1]]} | sizes | rates


def gpt_neox(rng: Random, seq: int) -> Config:
    """GPT-NeoX."""
    sizes = early(
        rng,
        seq,
        layers="num_hidden_layers",
        hidden="hidden_size",
        heads="num_attention_heads",
        positions="max_position_embeddings",
        inner="intermediate_size",
    )
    return {
        "model_type": "gpt_neox",
        "use_parallel_residual": flip(rng),
        "attention_bias": flip(rng),
        "rotary_pct": rng.choice((0.25, 0.5, 1.0)),
        "attention_dropout": rng.choice(RATES),
        "hidden_dropout": rng.choice(RATES),
    } | sizes


def gptj(rng: Random, seq: int) -> Config:
    """GPT-J."""
    sizes = early(
        rng,
        seq,
        layers="n_layer",
        hidden="n_embd",
        heads="n_head",
        positions="n_positions",
        inner="n_inner",
    )
    rates = {key: rng.choice(RATES) for key in ("attn_pdrop", "resid_pdrop", "embd_pdrop")}
    part = 8 * rng.randint(1, sizes["n_embd"] // sizes["n_head"] // 8)
    return {"model_type": "gptj", "rotary_dim": part} | sizes | rates


def opt(rng: Random, seq: int) -> Config:
    """OPT, 350M's form among the others."""
    sizes = early(
        rng,
        seq,
        layers="num_hidden_layers",
        hidden="hidden_size",
        heads="num_attention_heads",
        positions="max_position_embeddings",
        inner="ffn_dim",
    )
    word = sizes["hidden_size"] // 2 if rng.random() < 0.3 else sizes["hidden_size"]
    return {
        "model_type": "opt",
        "do_layer_norm_before": flip(rng),
        "word_embed_proj_dim": word,
        "dropout": rng.choice(RATES),
        "attention_dropout": rng.choice(RATES),
        "enable_bias": flip(rng),
    } | sizes


def bloom(rng: Random, seq: int) -> Config:
    """BLOOM."""
    sizes = early(rng, seq, layers="n_layer", hidden="hidden_size", heads="n_head")
    rates = {key: rng.choice(RATES) for key in ("attention_dropout", "hidden_dropout")}
    return {"model_type": "bloom"} | sizes | rates


def falcon(rng: Random, seq: int) -> Config:
    """Falcon 7B, 40B and RW."""
    sizes = early(
        rng,
        seq,
        layers="num_hidden_layers",
        hidden="hidden_size",
        heads="num_attention_heads",
        positions="max_position_embeddings",
        inner="ffn_hidden_size",
    )
    kinds: tuple[Config, ...] = (
        {"multi_query": True, "parallel_attn": True},
        {"new_decoder_architecture": True, "num_kv_heads": 1},
        {"new_decoder_architecture": True, "num_kv_heads": sizes["num_attention_heads"]},
        {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
    )
    rates = {key: rng.choice(RATES) for key in ("attention_dropout", "hidden_dropout")}
    return {"model_type": "falcon"} | sizes | rng.choice(kinds) | rates


def mpt(rng: Random, seq: int) -> Config:
    """MPT."""
    sizes = early(
        rng, seq, layers="n_layers", hidden="d_model", heads="n_heads", positions="max_seq_len"
    )
    own = {"attn_pdrop": 0, "clip_qkv": rng.choice((None, 8.0))}
    return {"model_type": "mpt", "attn_config": own, "resid_pdrop": rng.choice(RATES)} | sizes
