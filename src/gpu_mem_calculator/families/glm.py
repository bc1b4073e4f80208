"""GLM-4 in transformers: glm and glm4 (fused gate and up), glm4_moe (GLM-4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Attention
from .attention import head_counts, head_norms, partial_rotary, separate_attention
from .config import Config, ConfigError
from .frame import decoder, mtp_parameters, rotary_buffer
from .llama_like import NEVER, LlamaLike, readers
from .mlps import gated_mlp, routed_moe, router_bias
from .norms import pre_norms

GLM = LlamaLike(
    hidden=4096,
    ffn=13696,
    layers=40,
    heads=32,
    kv_heads=2,
    head_dim=128,
    vocab=151552,
    max_seq_len=131072,
    biases=(("attention_bias", True), NEVER, NEVER),
    mlp_names=("gate_up_proj",),
    rotary=0.5,
    rotary_impl="interleaved",
)
# GLM-4-0414 and GLM-Z1 have a norm after each branch, too
GLM4 = replace(
    GLM,
    norms=(
        ("pre", "input_layernorm"),
        ("post", "post_self_attn_layernorm"),
        ("pre_mlp", "post_attention_layernorm"),
        ("post_mlp", "post_mlp_layernorm"),
    ),
)


def _moe_attention(config: Config, hidden: int) -> Attention:
    """glm4_moe's attention; its default head size is hidden // heads rounded down (4096 // 96)."""
    heads = config.size("num_attention_heads", default=96)
    if heads > hidden:
        raise ConfigError(f"model.config.num_attention_heads={heads} is more than {hidden}")
    counts = head_counts(config, hidden, heads=heads, kv_heads=8, head_dim=hidden // heads)
    return separate_attention(
        hidden,
        *counts,
        bias=config.flag("attention_bias", default=False),
        norms=head_norms(("q_norm", "k_norm"), counts[2])
        if config.flag("use_qk_norm", default=False)
        else (),
        rotary_dim=partial_rotary(config, counts[2], 0.5),
        dropout=config.number("attention_dropout"),
    )


def read_glm4_moe(data: Mapping[str, Any]) -> Arch:
    """GLM-4.5 and 4.6 (transformers 5.17 models/glm4_moe): dense first, then experts."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    activation = config.text("hidden_act", "silu")
    attention, norms = _moe_attention(config, hidden), pre_norms(hidden)
    ffn = config.size("intermediate_size", default=10944)
    mlp = gated_mlp(hidden, ffn, activation=activation)
    dense = Layer(kind="dense", mixer=attention, mlp=mlp, norms=norms)
    moe = routed_moe(
        config,
        hidden,
        experts=128,
        top_k=8,
        ffn=1408,
        shared=1,
        router_impl="float_sigmoid",
        counts=("n_routed_experts", "num_local_experts"),
    )
    sparse = Layer(kind="moe", mixer=attention, mlp=moe, norms=norms)
    num_layers = config.size("num_hidden_layers", default=46)
    first = min(config.count("first_k_dense_replace", default=1), num_layers)
    vocab = config.size("vocab_size", default=151552)
    return decoder(
        config,
        "glm4_moe",
        hidden,
        (dense,) * first + (sparse,) * (num_layers - first),
        vocab=vocab,
        max_seq_len=131072,
        tied=False,
        rotary_dim=attention.rotary_dim,
        buffers=router_bias(first, num_layers, moe.num_experts)
        + rotary_buffer(attention.rotary_dim),
        mtp_parameters=mtp_parameters(config, sparse, hidden, vocab),
    )


FAMILIES = {**readers({"glm": GLM, "glm4": GLM4}), "glm4_moe": read_glm4_moe}
