"""Families whose code is published beside their weights: Qwen 1, InternLM 2, EXAONE 3, LLaDA.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Mlp, Norm
from .attention import fused_attention, head_counts, separate_attention
from .config import Config
from .frame import named_decoder


def _mlp(hidden: int, ffn: int, gate: str, up: str, down: str) -> Mlp:
    embed, inner = ("embed", hidden), ("ffn", ffn)
    return Mlp(
        inputs=(Linear(gate, embed, inner), Linear(up, embed, inner)),
        output=Linear(down, inner, embed),
        ffn=ffn,
        gated=True,
    )


def _norms(hidden: int, first: str, second: str) -> tuple[tuple[str, Norm], ...]:
    embed = ("embed", hidden)
    return (("pre", Norm(first, embed)), ("pre_mlp", Norm(second, embed)))


def read_qwen1(data: Mapping[str, Any]) -> Arch:
    """Qwen 1 (modeling_qwen.py of Qwen/Qwen-7B): `intermediate_size` is gate and up together.

    A config without `kv_channels` is not the published one; its width is that of one matrix.
    """
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    heads = config.size("num_attention_heads", default=32)
    size = config.size("kv_channels", "head_dim", default=config.divided(hidden, "heads", heads))
    ffn = config.size("intermediate_size", default=22016)
    if config.get("kv_channels") is not None or config.get("intermediate_size") is None:
        ffn = config.divided(ffn, "halves", 2)
    biased = not config.flag("no_bias", default=True)
    layer = Layer(
        kind="dense",
        mixer=fused_attention(
            hidden,
            heads,
            heads,
            size,
            name="c_attn",
            output="c_proj",
            bias=True,
            output_bias=biased,
            rotary_dim=size,
        ),
        mixer_name="attn",
        mlp=_mlp(hidden, ffn, "w2", "w1", "c_proj"),
        norms=_norms(hidden, "ln_1", "ln_2"),
    )
    return named_decoder(
        config,
        "qwen",
        hidden,
        (layer,) * config.size("num_hidden_layers", default=32),
        words="transformer.wte",
        blocks="transformer.h",
        final_norm=Norm("transformer.ln_f", ("embed", hidden)),
        vocab=151936,
        tied=False,
        trains=False,
        max_seq_len=config.size("seq_length", "max_position_embeddings", default=8192),
    )


def read_internlm2(data: Mapping[str, Any]) -> Arch:
    """InternLM 2 and 2.5 (modeling_internlm2.py of internlm/internlm2-7b)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    counts = head_counts(config, hidden, heads=32, kv_heads=None)
    bias = config.flag("bias", default=False)
    layer = Layer(
        kind="dense",
        mixer=fused_attention(
            hidden,
            *counts,
            name="wqkv",
            output="wo",
            bias=bias,
            output_bias=bias,
            rotary_dim=counts[2],
        ),
        mixer_name="attention",
        mlp=_mlp(hidden, config.size("intermediate_size", default=11008), "w1", "w3", "w2"),
        mlp_name="feed_forward",
        norms=_norms(hidden, "attention_norm", "ffn_norm"),
    )
    vocab, embed = config.size("vocab_size", default=103168), ("embed", hidden)
    return named_decoder(
        config,
        "internlm2",
        hidden,
        (layer,) * config.size("num_hidden_layers", default=32),
        words="model.tok_embeddings",
        blocks="model.layers",
        final_norm=Norm("model.norm", embed),
        vocab=vocab,
        max_seq_len=config.size("max_position_embeddings", default=2048),
        tied=False,
        head=Linear("output", embed, ("vocab", vocab)),
        trains=False,
    )


def read_exaone(data: Mapping[str, Any]) -> Arch:
    """EXAONE 3 and Deep (modeling_exaone.py of LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2048)
    counts = head_counts(config, hidden, heads=32, kv_heads=None)
    layer = Layer(
        kind="dense",
        mixer=separate_attention(hidden, *counts, output="out_proj", rotary_dim=counts[2]),
        mixer_name="attn.attention",
        mlp=_mlp(
            hidden,
            config.size("intermediate_size", default=4 * hidden),
            "c_fc_0",
            "c_fc_1",
            "c_proj",
        ),
        norms=_norms(hidden, "ln_1", "ln_2"),
    )
    return named_decoder(
        config,
        "exaone",
        hidden,
        (layer,) * config.size("num_layers", "num_hidden_layers", default=32),
        words="transformer.wte",
        blocks="transformer.h",
        final_norm=Norm("transformer.ln_f", ("embed", hidden)),
        vocab=102400,
        tied=False,
        trains=False,
        max_seq_len=config.size("max_position_embeddings", default=2048),
    )


def read_llada(data: Mapping[str, Any]) -> Arch:
    """LLaDA (modeling_llada.py of GSAI-ML/LLaDA-8B-Base): diffusion, so nothing is kept."""
    config = Config(data)
    hidden = config.size("d_model", "hidden_size", default=4096)
    heads = config.size("n_heads", "num_attention_heads", default=32)
    kv_heads = config.size("n_kv_heads", "num_key_value_heads", default=heads)
    size = config.divided(hidden, "heads", heads)
    config.divided(heads, "key-value heads", kv_heads)
    layer = Layer(
        kind="encoder",
        mixer=separate_attention(hidden, heads, kv_heads, size, output="attn_out", rotary_dim=size),
        mixer_name="",
        mlp=_mlp(
            hidden,
            config.size("mlp_hidden_size", "intermediate_size", default=12288),
            "ff_proj",
            "up_proj",
            "ff_out",
        ),
        mlp_name="",
        norms=_norms(hidden, "attn_norm", "ff_norm"),
    )
    vocab, embed = config.size("embedding_size", "vocab_size", default=126464), ("embed", hidden)
    prefix = "model.transformer"
    return named_decoder(
        Config({**data, "vocab_size": vocab}),
        "llada",
        hidden,
        (layer,) * config.size("n_layers", "num_hidden_layers", default=32),
        words=f"{prefix}.wte",
        blocks=f"{prefix}.blocks",
        final_norm=Norm(f"{prefix}.ln_f", embed),
        vocab=vocab,
        tied=False,
        head=Linear(f"{prefix}.ff_out", embed, ("vocab", vocab)),
        max_seq_len=config.size("max_sequence_length", "max_position_embeddings", default=4096),
        trains=False,
    )


FAMILIES = {
    "qwen": read_qwen1,
    "internlm2": read_internlm2,
    "exaone": read_exaone,
    "llada": read_llada,
}
