"""Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k), dense and with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Moe
from .config import Config, ConfigError
from .llama import ATTENTION_ONLY
from .llama_like import ALWAYS, NEVER, LlamaLike, Windows, readers, row_decoder, row_layer, width
from .mlps import routed_moe, shared_mlp
from .windows import patterned, same_windows


def _window(config: Config) -> int | None:
    """`sliding_window`, which counts only under `use_sliding_window`."""
    if not config.flag("use_sliding_window", default=False):
        return None
    return config.nullable("sliding_window", 4096)


def late_windows(config: Config, layers: int) -> Windows:
    """Qwen2 and Qwen3: layers from `max_window_layers` on slide."""
    first = config.count("max_window_layers", default=28)
    return patterned(config, layers, _window(config), lambda i: i >= first)


def even_windows(config: Config, layers: int) -> Windows:
    """Qwen2-MoE: every second layer below `max_window_layers` slides, from the first."""
    last = config.count("max_window_layers", default=28)
    return patterned(config, layers, _window(config), lambda i: i % 2 == 0 and i < last)


def switched_windows(config: Config, layers: int) -> Windows:
    """Qwen3-MoE: every layer slides under `use_sliding_window`."""
    slides = config.flag("use_sliding_window", default=False)
    return same_windows(config, layers, 4096) if slides else ()


QWEN2 = LlamaLike(
    hidden=4096,
    ffn=22016,
    layers=32,
    heads=32,
    kv_heads=32,
    vocab=151936,
    max_seq_len=32768,
    biases=(ALWAYS, NEVER, NEVER),
    windows=late_windows,
)
QWEN3 = replace(QWEN2, head_dim=128, biases=ATTENTION_ONLY, qk_norms=("q_norm", "k_norm"))
QWEN2_MOE = replace(
    QWEN2,
    hidden=2048,
    ffn=5632,
    layers=24,
    heads=16,
    kv_heads=16,
    biases=(("qkv_bias", True), NEVER, NEVER),
    windows=even_windows,
)
QWEN3_MOE = replace(
    QWEN3, hidden=2048, ffn=6144, layers=24, kv_heads=4, head_dim=None, windows=switched_windows
)


def gated_shared_moe(
    config: Config, hidden: int, *, experts: int, top_k: int, ffn: int, shared_ffn: int
) -> Moe:
    """Routed experts, and one shared expert of another width whose output a gate scales."""
    wide = config.size("shared_expert_intermediate_size", default=shared_ffn)
    activation = config.text("hidden_act", "silu")
    plain = routed_moe(
        config, hidden, experts=experts, top_k=top_k, ffn=ffn, counts=("num_experts",)
    )
    return replace(
        plain,
        shared=shared_mlp("shared_expert", hidden, wide, activation=activation),
        shared_gate=Linear("shared_expert_gate", ("embed", hidden), ("gate", 1)),
    )


def only_dense(config: Config) -> list[Any]:
    """`mlp_only_layers`: the layers that have no experts."""
    only = config.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise ConfigError(f"model.config.mlp_only_layers={only!r} must be a list of layer indices")
    return only


def sparse_layers(config: Config, layers: int) -> list[bool]:
    """Experts on each `decoder_sparse_step`-th layer that `mlp_only_layers` does not name."""
    only, step = only_dense(config), config.size("decoder_sparse_step", default=1)
    return [i not in only and (i + 1) % step == 0 for i in range(layers)]


def _mixed_layers(
    config: Config, row: LlamaLike, hidden: int, moe: Moe | None
) -> tuple[Layer, ...]:
    """Dense layers and layers with experts."""
    dense = row_layer(config, row, hidden)
    sparse = dense if moe is None else row_layer(config, row, hidden, moe)
    layers = config.size("num_hidden_layers", default=row.layers)
    return tuple(sparse if flag else dense for flag in sparse_layers(config, layers))


def read_qwen2_moe(data: Mapping[str, Any]) -> Arch:
    """Qwen1.5-MoE and Qwen2-MoE (transformers 5.17 models/qwen2_moe): a gated shared expert."""
    config = Config(data)
    hidden, row = width(config, QWEN2_MOE), QWEN2_MOE
    moe = None
    if config.count("num_experts", default=60):
        moe = gated_shared_moe(config, hidden, experts=60, top_k=4, ffn=1408, shared_ffn=5632)
    return row_decoder(config, "qwen2_moe", row, _mixed_layers(config, row, hidden, moe))


def read_qwen3_moe(data: Mapping[str, Any]) -> Arch:
    """Qwen3-MoE (transformers 5.17 models/qwen3_moe): no shared expert."""
    config = Config(data)
    hidden, row = width(config, QWEN3_MOE), QWEN3_MOE
    counts = ("num_experts", "num_local_experts")
    moe = None
    if config.count(*counts, default=128):
        moe = routed_moe(config, hidden, experts=128, top_k=8, ffn=768, counts=counts)
    return row_decoder(config, "qwen3_moe", row, _mixed_layers(config, row, hidden, moe))


FAMILIES = {
    **readers({"qwen2": QWEN2, "qwen3": QWEN3}),
    "qwen2_moe": read_qwen2_moe,
    "qwen3_moe": read_qwen3_moe,
}
