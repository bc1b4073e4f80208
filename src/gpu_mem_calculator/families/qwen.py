"""Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k), dense and with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Linear, Mlp, Moe
from .blocks import (
    FULL,
    SLIDING,
    head_counts,
    head_norms,
    layer_types,
    nullable,
    same_windows,
    shared_mlp,
    stacked_moe,
    text,
    typed_windows,
)
from .config import Config, ConfigError
from .llama import decoder, gated_mlp, pre_norms, separate_attention

QK_NORMS = ("q_norm", "k_norm")


def _layer(hidden: int, attention: Attention, mlp: Mlp | Moe) -> Layer:
    """Norm, attention, norm, MLP."""
    kind = "moe" if isinstance(mlp, Moe) else "dense"
    return Layer(kind=kind, mixer=attention, mlp=mlp, norms=pre_norms(hidden))


def _window(config: Config) -> int | None:
    """`sliding_window`, which counts only under `use_sliding_window`."""
    if not config.flag("use_sliding_window", default=False):
        return None
    return nullable(config, "sliding_window", 4096)


def _late_windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """Qwen2 and Qwen3: layers from `max_window_layers` on slide."""
    window, first = _window(config), config.count("max_window_layers", default=28)
    slides = [window is not None and i >= first for i in range(num_layers)]
    types = layer_types(config, num_layers, [SLIDING if s else FULL for s in slides])
    return typed_windows(types, window)


def _even_windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """Qwen2-MoE: every second layer below `max_window_layers` slides, from the first."""
    window, last = _window(config), config.count("max_window_layers", default=28)
    slides = [window is not None and i % 2 == 0 and i < last for i in range(num_layers)]
    types = layer_types(config, num_layers, [SLIDING if s else FULL for s in slides])
    return typed_windows(types, window)


def read_qwen2(data: Mapping[str, Any]) -> Arch:
    """Qwen2 and Qwen2.5 (transformers 5.17 models/qwen2): biases on q, k and v, none on o."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=32)
    attention = separate_attention(
        hidden, heads, kv_heads, head_dim,
        bias=True, rotary_dim=head_dim, dropout=config.number("attention_dropout"),
    )  # fmt: skip
    return _dense(config, "qwen2", hidden, attention)


def read_qwen3(data: Mapping[str, Any]) -> Arch:
    """Qwen3 (transformers 5.17 models/qwen3): head size 128 and norms on q and k."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    counts = head_counts(config, hidden, heads=32, kv_heads=32, head_dim=128)
    return _dense(config, "qwen3", hidden, _normed_attention(config, hidden, *counts))


def _normed_attention(
    config: Config, hidden: int, heads: int, kv_heads: int, head_dim: int
) -> Attention:
    """Qwen3's attention: norms over each head of q and k, one switch for all four biases."""
    bias = config.flag("attention_bias", default=False)
    return separate_attention(
        hidden, heads, kv_heads, head_dim, bias=bias, output_bias=bias,
        norms=head_norms(QK_NORMS, head_dim), rotary_dim=head_dim,
        dropout=config.number("attention_dropout"),
    )  # fmt: skip


def _dense(config: Config, family: str, hidden: int, attention: Attention) -> Arch:
    """The dense stack that Qwen2 and Qwen3 share."""
    ffn = config.size("intermediate_size", default=22016)
    mlp = gated_mlp(hidden, ffn, activation=text(config, "hidden_act", "silu"))
    num_layers = config.size("num_hidden_layers", default=32)
    return decoder(
        config, family, hidden, (_layer(hidden, attention, mlp),) * num_layers,
        vocab=151936, max_seq_len=32768, tied=False, rotary_dim=attention.head_dim,
        windows=_late_windows(config, num_layers),
    )  # fmt: skip


def read_qwen2_moe(data: Mapping[str, Any]) -> Arch:
    """Qwen1.5-MoE and Qwen2-MoE (transformers 5.17 models/qwen2_moe): a gated shared expert."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2048)
    activation = text(config, "hidden_act", "silu")
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=16, kv_heads=16)
    attention = separate_attention(
        hidden, heads, kv_heads, head_dim, bias=config.flag("qkv_bias", default=True),
        rotary_dim=head_dim, dropout=config.number("attention_dropout"),
    )  # fmt: skip
    shared = config.size("shared_expert_intermediate_size", default=5632)
    num_experts = config.count("num_experts", default=60)
    moe = stacked_moe(
        hidden,
        num_experts,
        config.size("num_experts_per_tok", default=4),
        config.size("moe_intermediate_size", default=1408),
        activation=activation,
        shared=shared_mlp("shared_expert", hidden, shared, activation=activation),
        shared_gate=Linear("shared_expert_gate", ("embed", hidden), ("gate", 1)),
    ) if num_experts else None  # fmt: skip
    layers = _mixed_layers(config, hidden, attention, moe, ffn=5632)
    return decoder(
        config, "qwen2_moe", hidden, layers,
        vocab=151936, max_seq_len=32768, tied=False, rotary_dim=head_dim,
        windows=_even_windows(config, len(layers)),
    )  # fmt: skip


def read_qwen3_moe(data: Mapping[str, Any]) -> Arch:
    """Qwen3-MoE (transformers 5.17 models/qwen3_moe): no shared expert."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2048)
    counts = head_counts(config, hidden, heads=32, kv_heads=4)
    attention = _normed_attention(config, hidden, *counts)
    num_experts = config.count("num_experts", "num_local_experts", default=128)
    moe = stacked_moe(
        hidden,
        num_experts,
        config.size("num_experts_per_tok", default=8),
        config.size("moe_intermediate_size", default=768),
        activation=text(config, "hidden_act", "silu"),
    ) if num_experts else None  # fmt: skip
    layers = _mixed_layers(config, hidden, attention, moe, ffn=6144)
    slides = config.flag("use_sliding_window", default=False)
    return decoder(
        config, "qwen3_moe", hidden, layers,
        vocab=151936, max_seq_len=32768, tied=False, rotary_dim=attention.head_dim,
        windows=same_windows(config, len(layers), 4096) if slides else (),
    )  # fmt: skip


def _mixed_layers(
    config: Config, hidden: int, attention: Attention, moe: Moe | None, *, ffn: int
) -> tuple[Layer, ...]:
    """Experts on each `decoder_sparse_step`-th layer that `mlp_only_layers` does not name."""
    only = config.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise ConfigError(f"model.config.mlp_only_layers={only!r} must be a list of layer indices")
    step = config.size("decoder_sparse_step", default=1)
    width = config.size("intermediate_size", default=ffn)
    mlp = gated_mlp(hidden, width, activation=text(config, "hidden_act", "silu"))
    dense = _layer(hidden, attention, mlp)
    sparse = dense if moe is None else _layer(hidden, attention, moe)
    return tuple(
        sparse if i not in only and (i + 1) % step == 0 else dense
        for i in range(config.size("num_hidden_layers", default=24))
    )


FAMILIES = {
    "qwen2": read_qwen2,
    "qwen2_moe": read_qwen2_moe,
    "qwen3": read_qwen3,
    "qwen3_moe": read_qwen3_moe,
}
