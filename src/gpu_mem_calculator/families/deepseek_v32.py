"""Latent attention after DeepSeek-V3: V3.2 and GLM-5 with an indexer, GLM-4.7-Flash without.

The activations of an indexer are not modelled: such a family has parameters and cache only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Indexer, LatentAttention, Linear, Norm
from .config import Config, ConfigError
from .deepseek import latent_attention, latent_layer
from .frame import decoder, mtp_parameters, rotary_buffer
from .mlps import gated_mlp, routed_moe, router_biases

OWN, SHARED = "full", "shared"


class Sizes(Struct, frozen=True, kw_only=True):
    """A family's defaults in transformers 5.17."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    vocab: int
    max_seq_len: int
    moe: Mapping[str, Any]
    latent: Mapping[str, int]
    first_dense: int
    index_heads: int = 0


V32 = Sizes(
    hidden=7168,
    ffn=18432,
    layers=61,
    heads=128,
    vocab=129280,
    max_seq_len=163840,
    moe={"ffn": 2048, "experts": 256, "top_k": 8, "shared": 1},
    latent={},
    first_dense=3,
    index_heads=64,
)
DSA = Sizes(
    hidden=6144,
    ffn=12288,
    layers=78,
    heads=64,
    vocab=154880,
    max_seq_len=202752,
    moe={"ffn": 2048, "experts": 256, "top_k": 8, "shared": 1},
    latent={"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256},
    first_dense=3,
    index_heads=32,
)
LITE = Sizes(
    hidden=2048,
    ffn=10240,
    layers=47,
    heads=20,
    vocab=154880,
    max_seq_len=202752,
    moe={"ffn": 1536, "experts": 64, "top_k": 4, "shared": 1},
    latent={"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256},
    first_dense=1,
)


def indexer(config: Config, hidden: int, query_rank: int, heads: int) -> Indexer:
    """DeepseekV32Indexer: small queries from the query latent, one small key a token."""
    size = config.size("index_head_dim", default=128)
    heads = config.size("index_n_heads", default=heads)
    embed, key = ("embed", hidden), ("index", size)
    parts = (
        Linear("wq_b", ("lora", query_rank), ("index", heads * size)),
        Linear("wk", embed, key),
        Norm("k_norm", key, "layer", bias=True),
        Linear("weights_proj", embed, ("index", heads)),
    )
    weights = (weight for part in parts for weight in part.weights())
    return Indexer(
        parameters=tuple(replace(one, name=f"indexer.{one.name}") for one in weights),
        key_dim=size,
        heads=heads,
    )


def indexer_types(config: Config, layers: int) -> list[str]:
    """Which layers have an indexer; "shared" ones read an earlier layer's choice."""
    pattern = config.get("index_topk_pattern")
    if isinstance(pattern, str):
        words = {"F": OWN, "S": SHARED}
        pattern = [words.get(letter, letter) for letter in pattern]
    freq = max(1, config.count("index_topk_freq", default=1))
    offset = config.count("index_skip_topk_offset", default=2)
    usual = [OWN if max(i - offset + 1, 0) % freq == 0 else SHARED for i in range(layers)]
    kinds = Config({"indexer_types": config.get("indexer_types") or pattern})
    types = kinds.per_layer("indexer_types", layers, usual)
    if bad := [kind for kind in types if kind not in (OWN, SHARED)]:
        raise ConfigError(f"model.config.indexer_types holds {bad[0]!r}; use {OWN!r}, {SHARED!r}")
    return types


def _dense_layers(config: Config, layers: int, first: int) -> list[bool]:
    """`mlp_layer_types`, else the first `first_k_dense_replace` are dense."""
    first = config.count("first_k_dense_replace", default=first)
    usual = ["dense" if i < first else "sparse" for i in range(layers)]
    return [kind == "dense" for kind in config.per_layer("mlp_layer_types", layers, usual)]


def _stack(
    config: Config, hidden: int, sizes: Sizes, attention: Sequence[LatentAttention]
) -> tuple[Layer, ...]:
    activation = config.text("hidden_act", "silu")
    ffn = config.size("intermediate_size", default=sizes.ffn)
    mlp = gated_mlp(hidden, ffn, activation=activation)
    moe = routed_moe(config, hidden, **sizes.moe, router_impl="float_sigmoid")
    dense = _dense_layers(config, len(attention), sizes.first_dense)
    by_pair = {
        (id(one), flag): latent_layer(hidden, one, mlp if flag else moe)
        for one in attention
        for flag in (False, True)
    }
    return tuple(by_pair[id(one), flag] for one, flag in zip(attention, dense, strict=True))


def _read(family: str, sizes: Sizes, data: Mapping[str, Any]) -> Arch:
    config = Config({**sizes.latent, **{k: v for k, v in data.items() if v is not None}})
    hidden = config.size("hidden_size", default=sizes.hidden)
    layers = config.size("num_hidden_layers", default=sizes.layers)
    plain = latent_attention(config, hidden, heads=sizes.heads, rotary_impl="interleaved")
    attention = [plain] * layers
    if sizes.index_heads:
        if not plain.query_rank:
            raise ConfigError(f"model.config.q_lora_rank must be set: {family}'s indexer reads it")
        index = indexer(config, hidden, plain.query_rank, sizes.index_heads)
        plain = replace(plain, chosen=config.size("index_topk", default=2048))
        kinds = {OWN: replace(plain, index=index), SHARED: plain}
        attention = [kinds[kind] for kind in indexer_types(config, layers)]
    stack = _stack(config, hidden, sizes, attention)
    vocab = config.size("vocab_size", default=sizes.vocab)
    mtp = mtp_parameters(config, stack[-1], hidden, vocab)
    if family == "glm_moe_dsa":  # GLM-5 publishes no copies of the embedding and the head
        modules = config.count("num_nextn_predict_layers")
        mtp -= modules * 2 * vocab * hidden
    return decoder(
        config,
        family,
        hidden,
        stack,
        vocab=vocab,
        max_seq_len=sizes.max_seq_len,
        tied=False,
        rotary_dim=plain.rope_dim,
        trains=not sizes.index_heads,
        mtp_parameters=mtp,
        buffers=router_biases(stack, "gate.e_score_correction_bias")
        + rotary_buffer(plain.rope_dim),
    )


def read_deepseek_v32(data: Mapping[str, Any]) -> Arch:
    """DeepSeek-V3.2 (transformers 5.17 models/deepseek_v32): every layer has an indexer."""
    return _read("deepseek_v32", V32, {**data, "indexer_types": None, "index_topk_pattern": None})


def read_glm_moe_dsa(data: Mapping[str, Any]) -> Arch:
    """GLM-5 (transformers 5.17 models/glm_moe_dsa)."""
    return _read("glm_moe_dsa", DSA, data)


def read_glm4_moe_lite(data: Mapping[str, Any]) -> Arch:
    """GLM-4.7-Flash (transformers 5.17 models/glm4_moe_lite): latent attention, no indexer."""
    return _read("glm4_moe_lite", LITE, data)


FAMILIES = {
    "deepseek_v32": read_deepseek_v32,
    "glm_moe_dsa": read_glm_moe_dsa,
    "glm4_moe_lite": read_glm4_moe_lite,
}
