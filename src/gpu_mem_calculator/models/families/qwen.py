"""Qwen2 (biases on q, k, v), Qwen3 (norms on q, k), dense and with experts; transformers 5.17."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..arch.blocks import Linear, Moe
from .config import Config, ConfigError
from .llama import QK_NORMS
from .llama_like import ALWAYS, ATTENTION_ONLY, NEVER, LlamaLike, readers
from .mlps import gated_mlp, routed_moe
from .windows import Windows, patterned, same_windows


def _window(config: Config) -> int | None:
    """`sliding_window`, which counts only under `use_sliding_window`."""
    if not config.flag("use_sliding_window"):
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
    slides = config.flag("use_sliding_window")
    return same_windows(config, layers, 4096) if slides else ()


QWEN2 = LlamaLike(
    *(4096, 22016, 32, 32, 32, 151936, 32768), biases=(ALWAYS, NEVER, NEVER), windows=late_windows
)
QWEN3 = replace(QWEN2, head_dim=128, biases=ATTENTION_ONLY, qk_norms=QK_NORMS)


def gated_shared_moe(config: Config, hidden: int, *, shared_ffn: int, **rest: Any) -> Moe:
    """Routed experts, and one shared expert of another width whose output a gate scales."""
    wide = config.size("shared_expert_intermediate_size", default=shared_ffn)
    shared = gated_mlp(hidden, wide, prefix="shared_expert.", activation=config.activation())
    gate = Linear("shared_expert_gate", ("embed", hidden), ("gate", 1))
    plain = routed_moe(config, hidden, counts=("num_experts",), **rest)
    return replace(plain, shared=shared, shared_gate=gate)


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


def qwen2_experts(config: Config, hidden: int) -> Moe | None:
    """A gated shared expert beside the others; None where a config has no experts."""
    if not config.count("num_experts", default=60):
        return None
    return gated_shared_moe(config, hidden, experts=60, top_k=4, ffn=1408, shared_ffn=5632)


def qwen3_experts(config: Config, hidden: int) -> Moe | None:
    """No expert is shared; None where a config has no experts."""
    counts = ("num_experts", "num_local_experts")
    if not config.count(*counts, default=128):
        return None
    return routed_moe(config, hidden, experts=128, top_k=8, ffn=768, counts=counts)


# Qwen1.5-MoE and Qwen2-MoE
QWEN2_MOE = LlamaLike(
    *(2048, 5632, 24, 16, 16, 151936, 32768),
    biases=(("qkv_bias", True), NEVER, NEVER),
    windows=even_windows,
    experts=qwen2_experts,
    sparse=sparse_layers,
)
QWEN3_MOE = LlamaLike(
    *(2048, 6144, 24, 32, 4, 151936, 32768),
    biases=ATTENTION_ONLY,
    qk_norms=QK_NORMS,
    windows=switched_windows,
    experts=qwen3_experts,
    sparse=sparse_layers,
)
FAMILIES = readers({"qwen2": QWEN2, "qwen3": QWEN3, "qwen2_moe": QWEN2_MOE, "qwen3_moe": QWEN3_MOE})
