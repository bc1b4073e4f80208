"""Llama 4, text tower: experts in some layers, chunked rotary attention in most.

Names are those of Llama4ForCausalLM.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Moe, Norm, Weight
from .attention import head_counts, separate_attention
from .config import Config, ConfigError, Fields
from .frame import decoder, decoder_layer, stacked
from .mlps import gated_mlp, stacked_moe

KINDS = ("full_attention", "chunked_attention")


def rotary_layers(config: Config, layers: int) -> list[bool]:
    """`no_rope_layers`, which is 1 where a layer has rotary; else all but every fourth."""
    every = config.size("no_rope_layer_interval", default=4)
    default = [(index + 1) % every != 0 for index in range(layers)]
    if config.get("no_rope_layers") == []:
        return default
    return [bool(value) for value in config.per_layer("no_rope_layers", layers, default)]


def expert_layers(config: Config, layers: int) -> set[int]:
    """`moe_layers`, else every `interleave_moe_layer_step`-th."""
    step = config.size("interleave_moe_layer_step", default=1)
    return set(config.layer_numbers("moe_layers", range(step - 1, layers, step)))


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
    ffn = config.ffn(8192)
    num_experts = config.size("num_local_experts", default=16)
    top_k = config.size("num_experts_per_tok", default=1)
    plain = stacked_moe(hidden, num_experts, top_k, ffn, router="router")
    expert, embed = ("expert", num_experts), ("embed", hidden)
    return replace(
        plain,
        experts=(
            Weight("experts.gate_up_proj", (expert, embed, ("expert_ffn", 2 * ffn))),
            Weight("experts.down_proj", (expert, ("expert_ffn", ffn), embed)),
        ),
        activation=activation,
        shared=gated_mlp(hidden, ffn, prefix="shared_expert.", activation=activation),
        all_tokens=True,
    )


def attention(config: Config, hidden: int, *, rotary: bool) -> Attention:
    """Rotary on complex pairs, then a norm without weights over each head of q and k."""
    counts = head_counts(config, hidden, heads=40, kv_heads=8, head_dim=128)
    head_dim, bias = counts[2], config.flag("attention_bias")
    normed = rotary and config.flag("use_qk_norm", default=True)
    return separate_attention(
        hidden,
        *counts,
        bias=bias,
        rotary_dim=head_dim if rotary else 0,
        rotary_impl="complex",
        float_softmax=False,
        norms=(Norm("qk_norm", ("head_dim", head_dim), affine=False),) * 2 if normed else (),
        dropout=config.number("attention_dropout"),
    )


def read_llama4_text(config: Config) -> Arch:
    """Llama 4 text model (transformers 5.17 models/llama4)."""
    hidden, layers, activation = config.hidden(5120), config.layers(48), config.activation()
    ffn = config.size("intermediate_size_mlp", default=16384)
    mlp = gated_mlp(hidden, ffn, activation=activation)
    moe = routed_mlp(config, hidden, activation)
    rotary, experts = rotary_layers(config, layers), expert_layers(config, layers)

    def layer(pair: tuple[bool, bool]) -> Layer:
        mixer = attention(config, hidden, rotary=pair[0])
        return decoder_layer(hidden, mixer, moe if pair[1] else mlp, mlp_name="feed_forward")

    stack = stacked(((rope, i in experts) for i, rope in enumerate(rotary)), layer)
    _, _, head_dim = head_counts(config, hidden, heads=40, kv_heads=8, head_dim=128)
    sizes: Fields = {"vocab": 202048, "max_seq_len": 131072, "rotary_dim": head_dim}
    return decoder(config, "llama4", hidden, stack, **sizes, windows=windows(config, rotary))


FAMILIES = {"llama4_text": read_llama4_text}
