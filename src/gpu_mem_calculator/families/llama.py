"""Llama and the families that differ from it by a bias, a norm or a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Attention, Linear, Mlp, Norm, Weight
from .blocks import head_counts
from .config import Config


def gated_mlp(hidden: int, ffn: int, *, bias: bool = False, activation: str = "silu") -> Mlp:
    """gate, up and down projections."""
    embed, inner = ("embed", hidden), ("ffn", ffn)
    return Mlp(
        inputs=(Linear("gate_proj", embed, inner, bias), Linear("up_proj", embed, inner, bias)),
        output=Linear("down_proj", inner, embed, bias),
        ffn=ffn,
        gated=True,
        activation=activation,
    )


def separate_attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    bias: bool = False,
    output_bias: bool = False,
    output: str = "o_proj",
    **rest: Any,
) -> Attention:
    """q, k and v each with a projection of their own."""
    embed = ("embed", hidden)
    q, kv = ("heads", heads * head_dim), ("kv_heads", kv_heads * head_dim)
    return Attention(
        inputs=(
            Linear("q_proj", embed, q, bias),
            Linear("k_proj", embed, kv, bias),
            Linear("v_proj", embed, kv, bias),
        ),
        output=Linear(output, q, embed, output_bias),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        **rest,
    )


def rotary_buffer(
    rotary_dim: int, copies: int = 1, name: str = "model.rotary_emb"
) -> tuple[Buffer, ...]:
    """The rotary frequencies; transformers keeps the original ones beside them."""
    names = ("inv_freq", "original_inv_freq")
    return tuple(
        Buffer(f"{name}.{n}{i or ''}", (rotary_dim // 2,)) for i in range(copies) for n in names
    )


def read_llama(data: Mapping[str, Any]) -> Arch:
    """Llama 1 to 3 (transformers 5.17 models/llama)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=None)
    bias, mlp_bias = (config.flag(k, default=False) for k in ("attention_bias", "mlp_bias"))
    mixer = separate_attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        bias=bias,
        output_bias=bias,
        rotary_dim=head_dim,
        dropout=config.number("attention_dropout"),
    )
    layer = Layer(
        kind="dense",
        mixer=mixer,
        mlp=gated_mlp(hidden, config.size("intermediate_size", default=11008), bias=mlp_bias),
        norms=pre_norms(hidden),
    )
    layers = (layer,) * config.size("num_hidden_layers", default=32)
    sizes: dict[str, Any] = {"vocab": 32000, "max_seq_len": 2048, "rotary_dim": head_dim}
    return decoder(config, "llama", hidden, layers, tied=False, **sizes)


def pre_norms(hidden: int, impl: str = "rms") -> tuple[tuple[str, Norm], ...]:
    """Llama's two norms, before attention and before the MLP."""
    embed = ("embed", hidden)
    return (
        ("pre", Norm("input_layernorm", embed, impl)),
        ("pre_mlp", Norm("post_attention_layernorm", embed, impl)),
    )


def decoder(
    config: Config,
    family: str,
    hidden: int,
    layers: tuple[Layer, ...],
    *,
    vocab: int,
    max_seq_len: int,
    tied: bool,
    rotary_dim: int,
    norm_impl: str = "rms",
    **rest: Any,
) -> Arch:
    """The frame that Llama and most of its kin share: embedding, stack, norm, head."""
    vocab = config.size("vocab_size", default=vocab)
    tied = config.flag("tie_word_embeddings", default=tied)
    embed = ("embed", hidden)
    values: dict[str, Any] = {
        "embedding": (Weight("model.embed_tokens.weight", (("vocab", vocab), embed)),),
        "final_norm": Norm("model.norm", embed, norm_impl),
        "head": None if tied else Linear("lm_head", embed, ("vocab", vocab)),
        "buffers": rotary_buffer(rotary_dim),
    }
    return Arch(
        family=family,
        hidden=hidden,
        vocab=vocab,
        max_seq_len=config.size("max_position_embeddings", default=max_seq_len),
        layers=layers,
        tied=tied,
        **values | rest,
    )


FAMILIES = {"llama": read_llama}
