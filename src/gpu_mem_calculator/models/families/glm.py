"""GLM-4 in transformers: glm and glm4 (fused gate and up), glm4_moe (GLM-4.5)."""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.arch import Arch
from ..arch.blocks import Attention
from .attention import head_counts, head_norms, partial_rotary, separate_attention
from .config import Config, ConfigError, Fields
from .frame import decoder, decoder_layer, dense_first, mtp_parameters, rotary_buffer
from .llama_like import NEVER, LlamaLike, readers
from .mlps import gated_mlp, routed_moe, router_biases

GLM = LlamaLike(
    *(4096, 13696, 40, 32, 2, 151552, 131072),
    head_dim=128,
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
    normed = config.flag("use_qk_norm")
    return separate_attention(
        hidden,
        *counts,
        bias=config.flag("attention_bias"),
        output_bias=False,
        norms=head_norms(("q_norm", "k_norm"), counts[2]) if normed else (),
        rotary_dim=partial_rotary(config, counts[2], 0.5),
        dropout=config.number("attention_dropout"),
    )


def read_glm4_moe(config: Config) -> Arch:
    """GLM-4.5 and 4.6 (transformers 5.17 models/glm4_moe): dense first, then experts."""
    hidden, vocab = config.hidden(4096), config.vocab(151552)
    attention = _moe_attention(config, hidden)
    mlp = gated_mlp(hidden, config.ffn(10944), activation=config.activation())
    counts = ("n_routed_experts", "num_local_experts")
    fields: Fields = {"shared": 1, "router_impl": "float_sigmoid", "counts": counts}
    moe = routed_moe(config, hidden, experts=128, top_k=8, ffn=1408, **fields)
    dense, sparse = (decoder_layer(hidden, attention, block) for block in (mlp, moe))
    stack = dense_first(config, dense, sparse, config.layers(46), 1)
    return decoder(
        config,
        "glm4_moe",
        hidden,
        stack,
        vocab=vocab,
        max_seq_len=131072,
        buffers=router_biases(stack) + rotary_buffer(attention.rotary_dim),
        mtp_parameters=mtp_parameters(config, sparse, hidden, vocab),
    )


FAMILIES = {**readers({"glm": GLM, "glm4": GLM4}), "glm4_moe": read_glm4_moe}
