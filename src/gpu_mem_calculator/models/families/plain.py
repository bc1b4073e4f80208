"""A model from plain numbers: the decoder that they describe, with nothing else in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arch.arch import Arch, Layer
from ..arch.blocks import Linear, Mlp, Moe, Norm, Weight
from .attention import separate_attention
from .config import Config, ConfigError
from .frame import rotary_buffer
from .mlps import gated_mlp, plain_mlp

DEFAULTS: dict[str, Any] = {
    "gated_mlp": True,
    "normalization": "rmsnorm",
    "position_embedding": "rope",
    "bias": False,
    "dropout": 0.0,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
    "max_seq_len": 2048,
}
WIDTHS = ("expert_intermediate_size", "shared_expert_intermediate_size")
EXPERT_KEYS = ("num_experts", "top_k", *WIDTHS)


def read_plain(numbers: Mapping[str, Any]) -> Arch:
    """The architecture of a run file's plain numbers.

    A width that is left out follows the usual ratio: 4 h, or 8/3 h rounded up to 256 where the
    MLP is gated (Llama's rule).
    """
    config = Config({**DEFAULTS, **numbers})
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    head_dim = config.get("head_dim") or config.divided(hidden, "attention heads", heads)
    kv_heads = config.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(f"model.num_key_value_heads={kv_heads} does not divide {heads} heads")
    layer = _layer(config, hidden, heads, kv_heads, head_dim)
    vocab, positions = config.size("vocab_size"), config.size("max_seq_len")
    embed = ("embed", hidden)
    tables = [Weight("embed_tokens.weight", (("vocab", vocab), embed))]
    if config.get("position_embedding") == "learned":
        tables.append(Weight("embed_positions.weight", (("position", positions), embed)))
    tied = config.flag("tie_word_embeddings")
    rope = config.get("position_embedding") == "rope"
    return Arch(
        family="plain",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=positions,
        layers=(layer,) * config.size("num_layers"),
        embedding=tuple(tables),
        embedding_dropout=config.number("dropout"),
        final_norm=_norm(config, "norm", hidden),
        head=None if tied else Linear("lm_head", embed, ("vocab", vocab)),
        tied=tied,
        buffers=rotary_buffer(head_dim, name="rotary_emb") if rope else (),
    )


def _norm(config: Config, name: str, hidden: int) -> Norm:
    if config.get("normalization") == "layernorm":
        return Norm(name, ("embed", hidden), "layer", bias=True)
    return Norm(name, ("embed", hidden))


def _layer(config: Config, hidden: int, heads: int, kv_heads: int, head_dim: int) -> Layer:
    bias, dropout = config.flag("bias"), config.number("dropout")
    attention = separate_attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        bias=bias,
        rotary_dim=head_dim if config.get("position_embedding") == "rope" else 0,
        alibi=config.get("position_embedding") == "alibi",
        dropout=dropout,
        residual_dropout=dropout,
    )
    gated = config.flag("gated_mlp", default=True)
    usual = -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden
    ffn = config.ffn(usual)
    moe = config.flag("moe_enabled", default=config.get("num_experts") is not None)
    unused = next((key for key in EXPERT_KEYS if config.get(key)), None)
    if unused is not None and not moe:
        setting = f"model.{unused}={config.get(unused)}"
        raise ConfigError(f"{setting} needs experts; set model.moe_enabled=true, or leave it out")
    places = (("pre", "norm1"), ("pre_mlp", "norm2"))
    return Layer(
        kind="moe" if moe else "dense",
        mixer=attention,
        mlp=_moe(config, hidden, ffn, gated) if moe else _mlp(hidden, ffn, gated, bias, dropout),
        norms=tuple((place, _norm(config, name, hidden)) for place, name in places),
    )


def _mlp(hidden: int, ffn: int, gated: bool, bias: bool, dropout: float) -> Mlp:
    if gated:
        return gated_mlp(hidden, ffn, bias=bias)
    names = ("up_proj", "down_proj")
    return plain_mlp(hidden, ffn, "gelu", names, bias=bias, dropout=dropout)


def _moe(config: Config, hidden: int, ffn: int, gated: bool) -> Moe:
    experts = config.size("num_experts", default=8)
    top_k = config.size("top_k", default=2)
    if top_k > experts:
        raise ConfigError(f"model.top_k={top_k} is more than its {experts} experts")
    width = config.size("expert_intermediate_size", default=ffn)
    shared = config.count("shared_expert_intermediate_size")
    embed, expert = ("embed", hidden), ("expert", experts)
    return Moe(
        router=(Weight("gate.weight", (("router", experts), embed)),),
        experts=(
            Weight("experts.gate_up_proj", (expert, ("expert_ffn", width * (1 + gated)), embed)),
            Weight("experts.down_proj", (expert, embed, ("expert_ffn", width))),
        ),
        num_experts=experts,
        top_k=top_k,
        ffn=width,
        gated=gated,
        shared=gated_mlp(hidden, shared) if shared else None,
    )
