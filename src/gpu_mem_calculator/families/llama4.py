"""Llama 4, text tower: experts in some layers, chunked rotary attention in most.

Names are those of Llama4ForCausalLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Mlp, Moe, Norm, Weight
from .attention import head_counts, separate_attention
from .config import Config, ConfigError
from .frame import decoder
from .mlps import gated_mlp, shared_mlp, stacked_moe
from .norms import pre_norms

KINDS = ("full_attention", "chunked_attention")


def rotary_layers(config: Config, layers: int) -> list[bool]:
    """`no_rope_layers`, which is 1 where a layer has rotary; else all but every fourth."""
    every = config.size("no_rope_layer_interval", default=4)
    default = [(index + 1) % every != 0 for index in range(layers)]
    empty = config.get("no_rope_layers") == []
    return (
        default if empty else [bool(v) for v in config.per_layer("no_rope_layers", layers, default)]
    )


def expert_layers(config: Config, layers: int) -> set[int]:
    """`moe_layers`, else every `interleave_moe_layer_step`-th."""
    step = config.size("interleave_moe_layer_step", default=1)
    layer_numbers = config.get("moe_layers")
    if layer_numbers is None:
        return set(range(step - 1, layers, step))
    if not isinstance(layer_numbers, list) or not all(
        isinstance(index, int) for index in layer_numbers
    ):
        raise ConfigError(
            f"model.config.moe_layers={layer_numbers!r} must be a list of layer numbers"
        )
    return set(layer_numbers)


def windows(config: Config, rotary: list[bool]) -> tuple[int | None, ...]:
    """The chunk of each chunked layer; keys of earlier chunks are never read."""
    types = config.per_layer("layer_types", len(rotary), [KINDS[r] for r in rotary])
    for kind in types:
        if kind not in KINDS:
            raise ConfigError(f"model.config.layer_types holds {kind!r}; use one of {KINDS}")
    chunk = config.nullable("attention_chunk_size", 8192)
    if chunk is None or KINDS[1] not in types:
        return ()
    return tuple(chunk if kind == KINDS[1] else None for kind in types)


def routed_mlp(config: Config, hidden: int, activation: str) -> Moe:
    """Llama4TextMoe: experts stored (in, out), all run on all tokens, and one shared expert."""
    ffn = config.size("intermediate_size", default=8192)
    num_experts = config.size("num_local_experts", default=16)
    top_k = config.size("num_experts_per_tok", default=1)
    plain = stacked_moe(hidden, num_experts, top_k, ffn, router="router")
    expert, embed = ("expert", num_experts), ("embed", hidden)
    return Moe(
        router=plain.router,
        experts=(
            Weight("experts.gate_up_proj", (expert, embed, ("expert_ffn", 2 * ffn))),
            Weight("experts.down_proj", (expert, ("expert_ffn", ffn), embed)),
        ),
        num_experts=num_experts,
        top_k=top_k,
        ffn=ffn,
        activation=activation,
        shared=shared_mlp("shared_expert", hidden, ffn, activation=activation),
        all_tokens=True,
    )


def attention(config: Config, hidden: int, *, rotary: bool) -> Attention:
    """Rotary on complex pairs, then a norm without weights over each head of q and k."""
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=40, kv_heads=8, head_dim=128)
    bias = config.flag("attention_bias", default=False)
    normed = rotary and config.flag("use_qk_norm", default=True)
    return separate_attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        bias=bias,
        output_bias=bias,
        rotary_dim=head_dim if rotary else 0,
        rotary_impl="complex",
        float_softmax=False,
        norms=(Norm("qk_norm", ("head_dim", head_dim), affine=False),) * 2 if normed else (),
        dropout=config.number("attention_dropout"),
    )


def read_llama4_text(data: Mapping[str, Any]) -> Arch:
    """Llama 4 text model (transformers 5.17 models/llama4)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=5120)
    layers = config.size("num_hidden_layers", default=48)
    activation = config.text("hidden_act", "silu")
    ffn = config.size("intermediate_size_mlp", default=16384)
    mlps: tuple[Mlp | Moe, Mlp | Moe] = (
        gated_mlp(hidden, ffn, activation=activation),
        routed_mlp(config, hidden, activation),
    )
    kinds = {
        (rope, moe): Layer(
            kind="moe" if moe else "dense",
            mixer=attention(config, hidden, rotary=rope),
            mlp=mlps[moe],
            mlp_name="feed_forward",
            norms=pre_norms(hidden),
        )
        for rope in (False, True)
        for moe in (False, True)
    }
    rotary, experts = rotary_layers(config, layers), expert_layers(config, layers)
    _, _, head_dim = head_counts(config, hidden, heads=40, kv_heads=8, head_dim=128)
    stack = tuple(kinds[rope, index in experts] for index, rope in enumerate(rotary))
    return decoder(
        config,
        "llama4",
        hidden,
        stack,
        vocab=202048,
        max_seq_len=131072,
        tied=False,
        rotary_dim=head_dim,
        windows=windows(config, rotary),
    )


FAMILIES = {"llama4_text": read_llama4_text}
