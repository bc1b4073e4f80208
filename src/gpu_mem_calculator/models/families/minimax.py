"""MiniMax-Text-01 (lightning attention between full layers) and Kimi Linear (delta attention).

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from ..arch.arch import Arch
from ..arch.blocks import Linear, Mixer, Mlp, Moe, Recurrence, Weight
from .attention import head_counts, separate_attention
from .config import Config, Fields
from .deepseek import latent_attention
from .frame import decoder, decoder_layer, stacked
from .llama_like import read_row
from .llama_like_experts import LOCAL, MINIMAX_M2
from .mlps import gated_mlp, routed_moe
from .windows import FULL, LINEAR, indexed, mixed_types


def lightning(config: Config, hidden: int, heads: int, head_dim: int) -> Recurrence:
    """MiniMaxLightningAttention: one head_dim x head_dim state a head."""
    embed, wide = ("embed", hidden), ("state", heads * head_dim)
    linears = (
        Linear("qkv_proj", embed, ("state", 3 * heads * head_dim)),
        Linear("out_proj", wide, embed),
        Linear("output_gate", embed, wide),
    )
    weights = (weight for linear in linears for weight in linear.weights())
    return Recurrence(
        kind="lightning",
        parameters=(Weight("norm.weight", (wide,)), *weights),
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


def read_minimax(config: Config) -> Arch:
    """MiniMax-Text-01 (transformers 5.17 models/minimax)."""
    if config.get("architectures") == ["MiniMaxM2ForCausalLM"]:
        return read_row("minimax_m2", MINIMAX_M2, config)
    hidden = config.hidden(4096)
    counts = head_counts(config, hidden, heads=32, kv_heads=8)
    moe = routed_moe(config, hidden, experts=8, top_k=2, ffn=14336, **LOCAL)
    mixers: dict[str, Mixer] = {
        FULL: separate_attention(hidden, *counts, rotary_dim=counts[2]),
        LINEAR: lightning(config, hidden, counts[0], counts[2]),
    }
    types = _minimax_types(config, config.layers(32))
    stack = stacked(types, lambda kind: decoder_layer(hidden, mixers[kind], moe))
    sizes: Fields = {"vocab": 32000, "max_seq_len": 131072, "rotary_dim": counts[2]}
    return decoder(config, "minimax", hidden, stack, **sizes, trains=False)


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


def _kimi_moe(config: Config, hidden: int) -> Moe:
    """Kimi Linear's experts, and one shared MLP."""
    return routed_moe(
        config,
        hidden,
        experts=256,
        top_k=8,
        ffn=1024,
        shared=1,
        counts=("num_experts",),
        top_k_keys=("num_experts_per_token", "num_experts_per_tok"),
        shared_key="num_shared_experts",
        router_impl="float_sigmoid",
    )


def _kimi_dense(config: Config, layers: int) -> list[bool]:
    """Which layers have no experts."""
    first = config.count("first_k_dense_replace", default=1)
    step = config.size("moe_layer_freq", default=1)
    usual = ["sparse" if i >= first and i % step == 0 else "dense" for i in range(layers)]
    return [word == "dense" for word in config.per_layer("mlp_layer_types", layers, usual)]


def read_kimi_linear(config: Config) -> Arch:
    """Kimi Linear (transformers 5.17 models/kimi_linear): latent attention without positions."""
    hidden, layers = config.hidden(2304), config.layers(27)
    linear = config.section("linear_attn_config")

    def size(name: str, other: str, default: int) -> int:
        return linear.size(name, default=config.size(other, default=default))

    heads = size("num_heads", "linear_num_heads", 32)
    head_dim = size("head_dim", "linear_head_dim", 128)
    conv = size("short_conv_kernel_size", "linear_conv_kernel_dim", 4)
    mixers: dict[str, Mixer] = {
        FULL: latent_attention(Config({"q_lora_rank": None, **config.data}), hidden, 32),
        LINEAR: kimi_delta(hidden, heads, head_dim, conv),
    }
    mlp = gated_mlp(hidden, config.ffn(9216), activation=config.activation())
    mlps: dict[bool, Mlp | Moe] = {True: mlp, False: _kimi_moe(config, hidden)}
    pairs = zip(_kimi_types(config, linear, layers), _kimi_dense(config, layers), strict=True)
    stack = stacked(pairs, lambda pair: decoder_layer(hidden, mixers[pair[0]], mlps[pair[1]]))
    length = ("model_max_length", "max_position_embeddings")
    sizes: Fields = {"vocab": 163840, "max_seq_len": 1048576, "length": length}
    return decoder(config, "kimi_linear", hidden, stack, **sizes, trains=False)


FAMILIES = {
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), read_minimax),
    "kimi_linear": read_kimi_linear,
}
