"""gpt-oss: attention sinks, every second layer in a window, experts with biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Moe, Weight
from .blocks import head_counts, layer_types, nullable, stacked_moe, typed_windows
from .config import Config
from .llama import decoder, pre_norms, separate_attention


def biased_experts(hidden: int, num_experts: int, top_k: int, ffn: int) -> Moe:
    """gpt-oss stores each expert as (in, out) and gives it and the router biases.

    Its activation is (up + 1) · gate · sigmoid(1.702 gate) on clamped halves
    (transformers 5.17 models/gpt_oss GptOssExperts._apply_gate).
    """
    moe = stacked_moe(hidden, num_experts, top_k, ffn, router="router", activation="gpt_oss")
    expert, embed = ("expert", num_experts), ("embed", hidden)
    both, inner = ("expert_ffn", 2 * ffn), ("expert_ffn", ffn)
    return Moe(
        router=(*moe.router, Weight("router.bias", (("router", num_experts),))),
        experts=(
            Weight("experts.gate_up_proj", (expert, embed, both)),
            Weight("experts.gate_up_proj_bias", (expert, both)),
            Weight("experts.down_proj", (expert, inner, embed)),
            Weight("experts.down_proj_bias", (expert, embed)),
        ),
        num_experts=num_experts,
        top_k=top_k,
        ffn=ffn,
        activation=moe.activation,
        router_impl="top_softmax",
    )


def gpt_oss_layer(config: Config, hidden: int, heads: int, kv_heads: int, head_dim: int) -> Layer:
    """Norms multiply by the weight in fp32; the sinks rule out torch's own attention."""
    bias = config.flag("attention_bias", default=True)
    return Layer(
        kind="moe",
        mixer=separate_attention(
            hidden,
            heads,
            kv_heads,
            head_dim,
            bias=bias,
            output_bias=bias,
            rotary_dim=head_dim,
            rotary_impl="joined",
            sinks=True,
            sdpa=False,
            float_softmax=False,
            extra=(Weight("sinks", (("heads", heads),)),),
            dropout=config.number("attention_dropout"),
        ),
        mlp=biased_experts(
            hidden,
            config.size("num_local_experts", "num_experts", default=128),
            config.size("num_experts_per_tok", default=4),
            config.size("intermediate_size", default=2880),
        ),
        norms=pre_norms(hidden, "rms_float"),
    )


def read_gpt_oss(data: Mapping[str, Any]) -> Arch:
    """gpt-oss (transformers 5.17 models/gpt_oss)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2880)
    layers = config.size("num_hidden_layers", default=36)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=64, kv_heads=8, head_dim=64)
    pattern = [("sliding_attention", "full_attention")[i % 2] for i in range(layers)]
    types = layer_types(config, layers, pattern)
    return decoder(
        config,
        "gpt_oss",
        hidden,
        (gpt_oss_layer(config, hidden, heads, kv_heads, head_dim),) * layers,
        vocab=201088,
        tied=False,
        max_seq_len=131072,
        rotary_dim=head_dim,
        norm_impl="rms_float",
        windows=typed_windows(types, nullable(config, "sliding_window", 128)),
    )


FAMILIES = {"gpt_oss": read_gpt_oss}
