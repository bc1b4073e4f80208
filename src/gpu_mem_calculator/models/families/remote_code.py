"""Families whose code is published beside their weights: Qwen 1, InternLM 2, EXAONE 3, LLaDA.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from typing import Any

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Linear
from .attention import fused_attention, head_counts, separate_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer
from .mlps import mlp_block
from .norms import norms_at, rms

GPT2_NAMES: Fields = {"words": "transformer.wte", "blocks": "transformer.h"}


def _layer(hidden: int, attention: Attention, ffn: int, mlp: str, norms: str, **rest: Any) -> Layer:
    """A dense layer; `mlp` names gate, up and down, `norms` the two norms."""
    gate, up, down = mlp.split()
    places = zip(("pre", "pre_mlp"), norms.split(), strict=True)
    block = mlp_block(hidden, ffn, (gate, up), down)
    return decoder_layer(hidden, attention, block, norms=norms_at(tuple(places), hidden), **rest)


def read_qwen1(config: Config) -> Arch:
    """Qwen 1 (modeling_qwen.py of Qwen/Qwen-7B): `intermediate_size` is gate and up together.

    A config without `kv_channels` is not the published one; its width is that of one matrix.
    """
    hidden, heads = config.hidden(4096), config.size("num_attention_heads", default=32)
    size = config.size("kv_channels", "head_dim", default=config.divided(hidden, "heads", heads))
    ffn = config.ffn(22016)
    if config.get("kv_channels") is not None or config.get("intermediate_size") is None:
        ffn = config.divided(ffn, "halves", 2)
    fields: Fields = {"name": "c_attn", "output": "c_proj", "rotary_dim": size}
    biases: Fields = {"bias": True, "output_bias": not config.flag("no_bias", default=True)}
    attention = fused_attention(hidden, heads, heads, size, **fields, **biases)
    layer = _layer(hidden, attention, ffn, "w2 w1 c_proj", "ln_1 ln_2", mixer_name="attn")
    return decoder(
        config,
        "qwen",
        hidden,
        (layer,) * config.layers(32),
        **GPT2_NAMES,
        final_norm=rms("transformer.ln_f", hidden),
        vocab=151936,
        max_seq_len=8192,
        length=("seq_length", "max_position_embeddings"),
        trains=False,
    )


def read_internlm2(config: Config) -> Arch:
    """InternLM 2 and 2.5 (modeling_internlm2.py of internlm/internlm2-7b)."""
    hidden, vocab = config.hidden(4096), config.vocab(103168)
    counts = head_counts(config, hidden, heads=32, kv_heads=None)
    fields: Fields = {"name": "wqkv", "output": "wo", "rotary_dim": counts[2]}
    attention = fused_attention(hidden, *counts, **fields, bias=config.flag("bias"))
    names = {"mixer_name": "attention", "mlp_name": "feed_forward"}
    norms = "attention_norm ffn_norm"
    layer = _layer(hidden, attention, config.ffn(11008), "w1 w3 w2", norms, **names)
    return decoder(
        config,
        "internlm2",
        hidden,
        (layer,) * config.layers(32),
        words="model.tok_embeddings",
        vocab=vocab,
        max_seq_len=2048,
        head=Linear("output", ("embed", hidden), ("vocab", vocab)),
        trains=False,
    )


def read_exaone(config: Config) -> Arch:
    """EXAONE 3 and Deep (modeling_exaone.py of LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct)."""
    hidden = config.hidden(2048)
    layers = config.size("num_layers", "num_hidden_layers", default=32)
    counts = head_counts(config, hidden, heads=32, kv_heads=None)
    attention = separate_attention(hidden, *counts, output="out_proj", rotary_dim=counts[2])
    mlp, name = "c_fc_0 c_fc_1 c_proj", "attn.attention"
    layer = _layer(hidden, attention, config.ffn(4 * hidden), mlp, "ln_1 ln_2", mixer_name=name)
    fields: Fields = {**GPT2_NAMES, "vocab": 102400, "max_seq_len": 2048, "trains": False}
    norm = rms("transformer.ln_f", hidden)
    return decoder(config, "exaone", hidden, (layer,) * layers, **fields, final_norm=norm)


def read_llada(config: Config) -> Arch:
    """LLaDA (modeling_llada.py of GSAI-ML/LLaDA-8B-Base): diffusion, so nothing is kept."""
    hidden = config.size("d_model", "hidden_size", default=4096)
    heads = config.size("n_heads", "num_attention_heads", default=32)
    kv_heads = config.size("n_kv_heads", "num_key_value_heads", default=heads)
    size = config.divided(hidden, "heads", heads)
    config.divided(heads, "key-value heads", kv_heads)
    layer = _layer(
        hidden,
        separate_attention(hidden, heads, kv_heads, size, output="attn_out", rotary_dim=size),
        config.size("mlp_hidden_size", "intermediate_size", default=12288),
        mlp="ff_proj up_proj ff_out",
        norms="attn_norm ff_norm",
        kind="encoder",
        mixer_name="",
        mlp_name="",
    )
    vocab = config.size("embedding_size", "vocab_size", default=126464)
    prefix = "model.transformer"
    return decoder(
        Config({**config.data, "vocab_size": vocab}),
        "llada",
        hidden,
        (layer,) * config.size("n_layers", "num_hidden_layers", default=32),
        words=f"{prefix}.wte",
        blocks=f"{prefix}.blocks",
        final_norm=rms(f"{prefix}.ln_f", hidden),
        vocab=vocab,
        head=Linear(f"{prefix}.ff_out", ("embed", hidden), ("vocab", vocab)),
        max_seq_len=4096,
        length=("max_sequence_length", "max_position_embeddings"),
        trains=False,
    )


FAMILIES = {"qwen": read_qwen1, "internlm2": read_internlm2, "exaone": read_exaone}
FAMILIES["llada"] = read_llada
