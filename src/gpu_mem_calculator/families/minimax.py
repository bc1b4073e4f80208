"""MiniMax-Text-01 (lightning attention between full layers) and Kimi Linear (delta attention).

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Mixer, Mlp, Moe, Recurrence, Weight
from .attention import head_counts, separate_attention
from .config import Config
from .deepseek import latent_attention
from .frame import decoder
from .hybrid_layers import LINEAR, indexed, mixed_types
from .llama_like_experts import read_minimax_m2
from .mlps import gated_mlp, shared_mlp, stacked_moe
from .norms import pre_norms
from .windows import FULL


def lightning(config: Config, hidden: int, heads: int, head_dim: int) -> Recurrence:
    """MiniMaxLightningAttention: one head_dim x head_dim state a head."""
    embed, wide = ("embed", hidden), ("state", heads * head_dim)
    linears = (
        Linear("qkv_proj", embed, ("state", 3 * heads * head_dim)),
        Linear("out_proj", wide, embed),
        Linear("output_gate", embed, wide),
    )
    return Recurrence(
        kind="lightning",
        parameters=(
            Weight("norm.weight", (wide,)),
            *(weight for linear in linears for weight in linear.weights()),
        ),
        heads=heads,
        key_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
    )


def _minimax_types(config: Config, layers: int) -> list[str]:
    """`layer_types`; the first release has `attn_type_list`, 1 where attention is full."""
    words = config.get("attn_type_list")
    if words is not None and config.get("layer_types") is None:
        flags = config.per_layer("attn_type_list", layers, [])
        return [FULL if flag else LINEAR for flag in flags]
    usual = [LINEAR if i % 2 else FULL for i in range(layers)]
    return mixed_types(config, "layer_types", layers, usual)


def read_minimax(data: Mapping[str, Any]) -> Arch:
    """MiniMax-Text-01 (transformers 5.17 models/minimax)."""
    if data.get("architectures") == ["MiniMaxM2ForCausalLM"]:
        return read_minimax_m2(data)
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    counts = head_counts(config, hidden, heads=32, kv_heads=8)
    moe = stacked_moe(
        hidden,
        config.size("num_local_experts", "num_experts", default=8),
        config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size", default=14336),
        activation=config.text("hidden_act", "silu"),
    )
    mixers: dict[str, Mixer] = {
        FULL: separate_attention(hidden, *counts, rotary_dim=counts[2]),
        LINEAR: lightning(config, hidden, counts[0], counts[2]),
    }
    by_kind = {
        kind: Layer(kind="moe", mixer=mixer, mlp=moe, norms=pre_norms(hidden))
        for kind, mixer in mixers.items()
    }
    types = _minimax_types(config, config.size("num_hidden_layers", default=32))
    return decoder(
        config,
        "minimax",
        hidden,
        tuple(by_kind[kind] for kind in types),
        vocab=32000,
        max_seq_len=131072,
        tied=False,
        rotary_dim=counts[2],
        trains=False,
    )


def kimi_delta(hidden: int, heads: int, head_dim: int, conv: int) -> Recurrence:
    """KimiLinearDeltaAttention: q, k and v each as wide, gates from a small latent."""
    embed, wide, small = ("embed", hidden), ("state", heads * head_dim), ("lora", head_dim)
    linears = (
        *(Linear(name, embed, wide) for name in ("q_proj", "k_proj", "v_proj")),
        Linear("forget_gate.f_a_proj", embed, small),
        Linear("forget_gate.f_b_proj", small, wide),
        Linear("b_proj", embed, ("state", heads)),
        Linear("g_a_proj", embed, small),
        Linear("g_b_proj", small, wide),
        Linear("o_proj", wide, embed),
    )
    channels = 3 * heads * head_dim
    return Recurrence(
        kind="delta",
        parameters=(
            Weight("conv1d.weight", (("state", channels), ("conv_in", 1), ("conv", conv))),
            Weight("forget_gate.dt_bias", (wide,)),
            Weight("forget_gate.A_log", (("one", 1), ("one", 1), ("state", heads), ("one", 1))),
            Weight("o_norm.weight", (("head_dim", head_dim),)),
            *(weight for linear in linears for weight in linear.weights()),
        ),
        heads=heads,
        key_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        channels=channels,
        conv=conv,
    )


def _kimi_types(config: Config, linear: Config, layers: int) -> list[str]:
    """Words, else the checkpoint's numbers (which count from 1), else every fourth."""
    usual = [FULL if i and i % 4 == 0 else LINEAR for i in range(layers)]
    if config.get("layer_types") is None and linear.get("full_attn_layers") is not None:
        return indexed(linear, "full_attn_layers", layers + 1, ())[1:]
    return mixed_types(config, "layer_types", layers, usual)


def _kimi_moe(config: Config, hidden: int, activation: str) -> Moe:
    ffn = config.size("moe_intermediate_size", default=1024)
    shared = config.count("num_shared_experts", default=1)
    return stacked_moe(
        hidden,
        config.size("num_experts", default=256),
        config.size("num_experts_per_token", "num_experts_per_tok", default=8),
        ffn,
        activation=activation,
        router_impl="float_sigmoid",
        shared=shared_mlp("shared_experts", hidden, ffn * shared, activation=activation)
        if shared
        else None,
    )


def read_kimi_linear(data: Mapping[str, Any]) -> Arch:
    """Kimi Linear (transformers 5.17 models/kimi_linear): latent attention without positions."""
    config = Config(data)
    linear = config.section("linear_attn_config")
    hidden = config.size("hidden_size", default=2304)
    layers = config.size("num_hidden_layers", default=27)
    activation = config.text("hidden_act", "silu")
    heads = linear.size("num_heads", default=config.size("linear_num_heads", default=32))
    size = linear.size("head_dim", default=config.size("linear_head_dim", default=128))
    conv = linear.size(
        "short_conv_kernel_size", default=config.size("linear_conv_kernel_dim", default=4)
    )
    latent = Config({"q_lora_rank": None, **data})
    mixers: dict[str, Mixer] = {
        FULL: latent_attention(latent, hidden, heads=32, rotary_impl="interleaved"),
        LINEAR: kimi_delta(hidden, heads, size, conv),
    }
    ffn = config.size("intermediate_size", default=9216)
    mlps: dict[bool, Mlp | Moe] = {
        True: gated_mlp(hidden, ffn, activation=activation),
        False: _kimi_moe(config, hidden, activation),
    }
    first = config.count("first_k_dense_replace", default=1)
    step = config.size("moe_layer_freq", default=1)
    usual = ["sparse" if i >= first and i % step == 0 else "dense" for i in range(layers)]
    dense = [word == "dense" for word in config.per_layer("mlp_layer_types", layers, usual)]
    by_pair = {
        (kind, flag): Layer(
            kind="dense" if flag else "moe",
            mixer=mixers[kind],
            mlp=mlps[flag],
            norms=pre_norms(hidden),
        )
        for kind in mixers
        for flag in mlps
    }
    types = _kimi_types(config, linear, layers)
    stack = tuple(by_pair[pair] for pair in zip(types, dense, strict=True))
    limit = config.size("model_max_length", "max_position_embeddings", default=1048576)
    arch = decoder(
        config,
        "kimi_linear",
        hidden,
        stack,
        vocab=163840,
        max_seq_len=limit,
        tied=False,
        rotary_dim=0,
        buffers=(),
        trains=False,
    )
    return replace(arch, max_seq_len=limit)


FAMILIES = {
    "minimax": read_minimax,
    "minimax_text_01": read_minimax,
    "minimax_m1": read_minimax,
    "kimi_linear": read_kimi_linear,
}
