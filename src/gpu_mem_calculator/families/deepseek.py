"""DeepSeek: MoE v1 (plain attention), V2, V3 and Kimi K2 (latent attention)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import LatentAttention, Linear, Mixer, Mlp, Moe, Norm
from .config import Config
from .frame import decoder, mtp_parameters, rotary_buffer
from .llama import ATTENTION_ONLY, LLAMA
from .llama_like import row_attention, row_mlp
from .mlps import gated_mlp, routed_moe, router_bias
from .norms import pre_norms


def latent_attention(
    config: Config, hidden: int, *, heads: int, rotary_impl: str
) -> LatentAttention:
    """Keys and values from one latent; queries from another unless `q_lora_rank` is null.

    `attention_bias` adds biases to q_a, kv_a and o alone (DeepseekV3Attention.__init__).
    """
    heads = config.size("num_attention_heads", default=heads)
    bias = config.flag("attention_bias", default=False)
    query_rank = config.nullable("q_lora_rank", 1536) or 0
    kv_rank = config.size("kv_lora_rank", default=512)
    nope = config.size("qk_nope_head_dim", default=128)
    rope = config.size("qk_rope_head_dim", default=64)
    value = config.size("v_head_dim", default=128)
    embed, q = ("embed", hidden), ("heads", heads * (nope + rope))
    latent, inner = ("lora", query_rank), ("lora", kv_rank)
    return LatentAttention(
        query=(Linear("q_a_proj", embed, latent, bias), Linear("q_b_proj", latent, q))
        if query_rank
        else (Linear("q_proj", embed, q),),
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


def latent_layer(hidden: int, mixer: Mixer, mlp: Mlp | Moe) -> Layer:
    """Norm, attention, norm, MLP."""
    kind = "moe" if isinstance(mlp, Moe) else "dense"
    return Layer(kind=kind, mixer=mixer, mlp=mlp, norms=pre_norms(hidden))


def read_deepseek_v2(data: Mapping[str, Any]) -> Arch:
    """DeepSeek-V2 and V2-Lite (transformers 5.17 models/deepseek_v2): rotary in complex fp32."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    bias = config.flag("mlp_bias", default=False)
    attention = latent_attention(config, hidden, heads=32, rotary_impl="complex")
    config.divided(hidden, "heads", attention.heads)
    ffn = config.size("intermediate_size", default=11008)
    mlp = gated_mlp(hidden, ffn, bias=bias, activation=config.text("hidden_act", "silu"))
    num_layers = config.size("num_hidden_layers", default=32)
    first = min(config.count("first_k_dense_replace", default=0), num_layers)
    layers = (latent_layer(hidden, attention, mlp),) * first
    if first < num_layers:
        moe = routed_moe(
            config,
            hidden,
            ffn=1407,
            experts=64,
            top_k=None,
            shared=2,
            bias_key="mlp_bias",
            router_impl="float_softmax",
        )
        layers += (latent_layer(hidden, attention, moe),) * (num_layers - first)
    return decoder(
        config,
        "deepseek_v2",
        hidden,
        layers,
        vocab=102400,
        max_seq_len=2048,
        tied=False,
        rotary_dim=attention.rope_dim,
    )


def read_deepseek_v3(data: Mapping[str, Any], family: str = "deepseek_v3") -> Arch:
    """DeepSeek-V3 and R1 (transformers 5.17 models/deepseek_v3)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=7168)
    impl = "interleaved" if config.flag("rope_interleave", default=True) else "half"
    attention = latent_attention(config, hidden, heads=128, rotary_impl=impl)
    ffn = config.size("intermediate_size", default=18432)
    mlp = gated_mlp(hidden, ffn, activation=config.text("hidden_act", "silu"))
    moe = routed_moe(
        config, hidden, ffn=2048, experts=256, top_k=8, shared=1, router_impl="float_sigmoid"
    )
    dense, sparse = latent_layer(hidden, attention, mlp), latent_layer(hidden, attention, moe)
    num_layers = config.size("num_hidden_layers", default=61)
    first = min(config.count("first_k_dense_replace", default=3), num_layers)
    vocab = config.size("vocab_size", default=129280)
    return decoder(
        config,
        family,
        hidden,
        (dense,) * first + (sparse,) * (num_layers - first),
        vocab=vocab,
        max_seq_len=4096,
        tied=False,
        rotary_dim=attention.rope_dim,
        buffers=router_bias(first, num_layers, moe.num_experts) + rotary_buffer(attention.rope_dim),
        mtp_parameters=mtp_parameters(config, sparse, hidden, vocab),
    )


def read_kimi_k2(data: Mapping[str, Any]) -> Arch:
    """Kimi K2: DeepSeek-V3's code and defaults under another name."""
    return read_deepseek_v3(data, "kimi_k2")


def _cached_rotary(num_layers: int, head_dim: int, positions: int) -> tuple[Buffer, ...]:
    """Each layer of the published v1 code keeps its own frequencies, cosines and sines.

    The tables are built for `max_position_embeddings` in the dtype the model is loaded in.
    """
    return tuple(
        Buffer(f"model.layers.{i}.self_attn.rotary_emb.{name}", shape, bits)
        for i in range(num_layers)
        for name, shape, bits in (
            ("inv_freq", (head_dim // 2,), 32),
            ("cos_cached", (positions, head_dim), 16),
            ("sin_cached", (positions, head_dim), 16),
        )
    )


FIRST = replace(LLAMA, kv_heads=32, biases=ATTENTION_ONLY)


def read_deepseek(data: Mapping[str, Any]) -> Arch:
    """DeepSeek-MoE 16B (modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base).

    That code keeps each expert's three projections apart; here they are stacked as in the later
    families, with the same elements. Without `n_routed_experts` every layer is dense.
    """
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    attention = row_attention(config, FIRST, hidden)
    dense = sparse = latent_layer(hidden, attention, row_mlp(config, FIRST, hidden))
    if config.get("n_routed_experts") is not None:
        moe = routed_moe(
            config, hidden, ffn=1407, experts=64, top_k=None, shared=0, router_impl="float_softmax"
        )
        sparse = latent_layer(hidden, attention, moe)
    num_layers = config.size("num_hidden_layers", default=30)
    first = config.count("first_k_dense_replace", default=0)
    step = config.size("moe_layer_freq", default=1)
    layers = tuple(sparse if i >= first and i % step == 0 else dense for i in range(num_layers))
    positions = config.size("max_position_embeddings", default=2048)
    return decoder(
        config,
        "deepseek",
        hidden,
        layers,
        vocab=102400,
        max_seq_len=2048,
        tied=False,
        rotary_dim=attention.head_dim,
        buffers=_cached_rotary(num_layers, attention.head_dim, positions),
    )


FAMILIES = {
    "deepseek": read_deepseek,
    "deepseek_v2": read_deepseek_v2,
    "deepseek_v3": read_deepseek_v3,
    "kimi_k2": read_kimi_k2,
}
