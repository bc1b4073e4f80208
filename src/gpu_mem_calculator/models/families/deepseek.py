"""DeepSeek: MoE v1 (plain attention), V2, V3 and Kimi K2 (latent attention)."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ..arch.arch import Arch, Buffer
from ..arch.blocks import LatentAttention, Linear, Norm, RotaryImpl
from .config import Config, Fields
from .frame import decoder, decoder_layer, dense_first, mtp_parameters, rotary_buffer
from .llama import LLAMA
from .llama_like import ATTENTION_ONLY, row_attention, row_mlp
from .mlps import gated_mlp, routed_moe, router_biases


def latent_attention(
    config: Config, hidden: int, heads: int, rotary_impl: RotaryImpl = "interleaved"
) -> LatentAttention:
    """Keys and values from one latent; queries from another unless `q_lora_rank` is null.

    `attention_bias` adds biases to q_a, kv_a and o alone (DeepseekV3Attention.__init__).
    """
    heads = config.size("num_attention_heads", default=heads)
    bias = config.flag("attention_bias")
    query_rank = config.nullable("q_lora_rank", 1536) or 0
    kv_rank = config.size("kv_lora_rank", default=512)
    nope = config.size("qk_nope_head_dim", default=128)
    rope = config.size("qk_rope_head_dim", default=64)
    value = config.size("v_head_dim", default=128)
    embed, q = ("embed", hidden), ("heads", heads * (nope + rope))
    latent, inner = ("lora", query_rank), ("lora", kv_rank)
    q_a, q_b = Linear("q_a_proj", embed, latent, bias), Linear("q_b_proj", latent, q)
    return LatentAttention(
        query=(q_a, q_b) if query_rank else (Linear("q_proj", embed, q),),
        query_norm=Norm("q_a_layernorm", latent) if query_rank else None,
        kv_a=Linear("kv_a_proj_with_mqa", embed, ("lora", kv_rank + rope), bias),
        kv_norm=Norm("kv_a_layernorm", inner),
        kv_b=Linear("kv_b_proj", inner, ("heads", heads * (nope + value))),
        output=Linear("o_proj", ("heads", heads * value), embed, bias),
        heads=heads,
        nope_dim=nope,
        rope_dim=rope,
        value_dim=value,
        kv_rank=kv_rank,
        query_rank=query_rank,
        dropout=config.number("attention_dropout"),
        rotary_impl=rotary_impl,
    )


def read_deepseek_v2(config: Config) -> Arch:
    """DeepSeek-V2 and V2-Lite (transformers 5.17 models/deepseek_v2): rotary in complex fp32."""
    hidden, layers, bias = config.hidden(4096), config.layers(32), config.flag("mlp_bias")
    attention = latent_attention(config, hidden, 32, "complex")
    config.divided(hidden, "heads", attention.heads)
    mlp = gated_mlp(hidden, config.ffn(11008), bias=bias, activation=config.activation())
    dense = sparse = decoder_layer(hidden, attention, mlp)
    if config.count("first_k_dense_replace") < layers:
        fields: Fields = {"bias_key": "mlp_bias", "router_impl": "float_softmax"}
        moe = routed_moe(config, hidden, experts=64, top_k=None, ffn=1407, shared=2, **fields)
        sparse = decoder_layer(hidden, attention, moe)
    stack, rope = dense_first(config, dense, sparse, layers), attention.rope_dim
    sizes: Fields = {"vocab": 102400, "max_seq_len": 2048, "rotary_dim": rope}
    return decoder(config, "deepseek_v2", hidden, stack, **sizes)


def read_deepseek_v3(family: str, config: Config) -> Arch:
    """DeepSeek-V3 and R1 (transformers 5.17 models/deepseek_v3); Kimi K2 has the same code."""
    hidden, vocab = config.hidden(7168), config.vocab(129280)
    impl: RotaryImpl = "interleaved" if config.flag("rope_interleave", default=True) else "half"
    attention = latent_attention(config, hidden, 128, impl)
    mlp = gated_mlp(hidden, config.ffn(18432), activation=config.activation())
    fields: Fields = {"shared": 1, "router_impl": "float_sigmoid"}
    moe = routed_moe(config, hidden, experts=256, top_k=8, ffn=2048, **fields)
    dense, sparse = (decoder_layer(hidden, attention, block) for block in (mlp, moe))
    stack = dense_first(config, dense, sparse, config.layers(61), 3)
    return decoder(
        config,
        family,
        hidden,
        stack,
        vocab=vocab,
        max_seq_len=4096,
        buffers=router_biases(stack) + rotary_buffer(attention.rope_dim),
        mtp_parameters=mtp_parameters(config, sparse, hidden, vocab),
    )


def _cached_rotary(num_layers: int, head_dim: int, positions: int) -> tuple[Buffer, ...]:
    """Each layer of the published v1 code keeps its own frequencies, cosines and sines.

    The tables are built for `max_position_embeddings` in the dtype the model is loaded in.
    """
    shapes: dict[str, tuple[int, ...]] = {"inv_freq": (head_dim // 2,)}
    shapes |= dict.fromkeys(("cos_cached", "sin_cached"), (positions, head_dim))
    return tuple(
        Buffer(
            f"model.layers.{i}.self_attn.rotary_emb.{name}", shape, 32 if len(shape) == 1 else 16
        )
        for i in range(num_layers)
        for name, shape in shapes.items()
    )


FIRST = replace(LLAMA, kv_heads=32, biases=ATTENTION_ONLY)


def read_deepseek(config: Config) -> Arch:
    """DeepSeek-MoE 16B (modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base).

    That code keeps each expert's three projections apart; here they are stacked as in the later
    families, with the same elements. Without `n_routed_experts` every layer is dense.
    """
    hidden, layers = config.hidden(4096), config.layers(30)
    attention = row_attention(config, FIRST, hidden)
    dense = sparse = decoder_layer(hidden, attention, row_mlp(config, FIRST, hidden))
    if config.get("n_routed_experts") is not None:
        fields: Fields = {"shared": 0, "router_impl": "float_softmax"}
        moe = routed_moe(config, hidden, experts=64, top_k=None, ffn=1407, **fields)
        sparse = decoder_layer(hidden, attention, moe)
    first = config.count("first_k_dense_replace")
    step = config.size("moe_layer_freq", default=1)
    stack = tuple(sparse if i >= first and i % step == 0 else dense for i in range(layers))
    positions = config.size("max_position_embeddings", default=2048)
    buffers = _cached_rotary(layers, attention.head_dim, positions)
    sizes: Fields = {"vocab": 102400, "max_seq_len": 2048, "buffers": buffers}
    return decoder(config, "deepseek", hidden, stack, **sizes)


FAMILIES = {
    "deepseek": read_deepseek,
    "deepseek_v2": read_deepseek_v2,
    "deepseek_v3": partial(read_deepseek_v3, "deepseek_v3"),
    "kimi_k2": partial(read_deepseek_v3, "kimi_k2"),
}
