"""GLM-4 in transformers: glm and glm4 (fused gate and up), glm4_moe (GLM-4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Moe, Norm
from .blocks import (
    fused_mlp,
    head_counts,
    head_norms,
    mtp_parameters,
    partial_rotary,
    router_bias,
    shared_mlp,
    stacked_moe,
    text,
)
from .config import Config, ConfigError
from .llama import decoder, gated_mlp, pre_norms, rotary_buffer, separate_attention


def _dense_glm(data: Mapping[str, Any], family: str, places: tuple[tuple[str, str], ...]) -> Arch:
    """glm and glm4, which differ by their norms alone."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=2, head_dim=128)
    rotary_dim = partial_rotary(config, head_dim, 0.5)
    attention = separate_attention(
        hidden, heads, kv_heads, head_dim, bias=config.flag("attention_bias", default=True),
        rotary_dim=rotary_dim, rotary_impl="interleaved",
        dropout=config.number("attention_dropout"),
    )  # fmt: skip
    ffn = config.size("intermediate_size", default=13696)
    layer = Layer(
        kind="dense",
        mixer=attention,
        mlp=fused_mlp(hidden, ffn, activation=text(config, "hidden_act", "silu")),
        norms=tuple((place, Norm(name, ("embed", hidden))) for place, name in places),
    )
    return decoder(
        config, family, hidden, (layer,) * config.size("num_hidden_layers", default=40),
        vocab=151552, max_seq_len=131072, tied=False, rotary_dim=rotary_dim,
    )  # fmt: skip


def read_glm(data: Mapping[str, Any]) -> Arch:
    """glm-4-9b-chat-hf (transformers 5.17 models/glm)."""
    places = (("pre", "input_layernorm"), ("pre_mlp", "post_attention_layernorm"))
    return _dense_glm(data, "glm", places)


def read_glm4(data: Mapping[str, Any]) -> Arch:
    """GLM-4-0414 and GLM-Z1 (transformers 5.17 models/glm4): a norm behind each branch too."""
    places = (
        ("pre", "input_layernorm"),
        ("post", "post_self_attn_layernorm"),
        ("pre_mlp", "post_attention_layernorm"),
        ("post_mlp", "post_mlp_layernorm"),
    )
    return _dense_glm(data, "glm4", places)


def _moe_attention(config: Config, hidden: int) -> Attention:
    """glm4_moe's attention; its default head size is hidden // heads rounded down (4096 // 96)."""
    heads = config.size("num_attention_heads", default=96)
    if heads > hidden:
        raise ConfigError(f"model.config.num_attention_heads={heads} is more than {hidden}")
    counts = head_counts(config, hidden, heads=heads, kv_heads=8, head_dim=hidden // heads)
    return separate_attention(
        hidden, *counts, bias=config.flag("attention_bias", default=False),
        norms=head_norms(("q_norm", "k_norm"), counts[2])
        if config.flag("use_qk_norm", default=False) else (),
        rotary_dim=partial_rotary(config, counts[2], 0.5),
        dropout=config.number("attention_dropout"),
    )  # fmt: skip


def _moe(config: Config, hidden: int, activation: str) -> Moe:
    """Routed experts and one shared MLP as wide as `n_shared_experts` of them."""
    ffn = config.size("moe_intermediate_size", default=1408)
    num_shared = config.count("n_shared_experts", default=1)
    return stacked_moe(
        hidden,
        config.size("n_routed_experts", "num_local_experts", default=128),
        config.size("num_experts_per_tok", default=8),
        ffn,
        activation=activation,
        router_impl="float_sigmoid",
        shared=shared_mlp("shared_experts", hidden, ffn * num_shared, activation=activation)
        if num_shared
        else None,
    )


def read_glm4_moe(data: Mapping[str, Any]) -> Arch:
    """GLM-4.5 and 4.6 (transformers 5.17 models/glm4_moe): dense first, then experts."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    activation = text(config, "hidden_act", "silu")
    attention, norms = _moe_attention(config, hidden), pre_norms(hidden)
    ffn = config.size("intermediate_size", default=10944)
    mlp = gated_mlp(hidden, ffn, activation=activation)
    dense = Layer(kind="dense", mixer=attention, mlp=mlp, norms=norms)
    moe = _moe(config, hidden, activation)
    sparse = Layer(kind="moe", mixer=attention, mlp=moe, norms=norms)
    num_layers = config.size("num_hidden_layers", default=46)
    first = min(config.count("first_k_dense_replace", default=1), num_layers)
    vocab = config.size("vocab_size", default=151552)
    return decoder(
        config, "glm4_moe", hidden, (dense,) * first + (sparse,) * (num_layers - first),
        vocab=vocab, max_seq_len=131072, tied=False, rotary_dim=attention.rotary_dim,
        buffers=router_bias(first, num_layers, moe.num_experts)
        + rotary_buffer(attention.rotary_dim),
        mtp_parameters=mtp_parameters(config, sparse, hidden, vocab),
    )  # fmt: skip


FAMILIES = {"glm": read_glm, "glm4": read_glm4, "glm4_moe": read_glm4_moe}
