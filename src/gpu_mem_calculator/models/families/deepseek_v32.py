"""Latent attention after DeepSeek-V3: V3.2 and GLM-5 with an indexer, GLM-4.7-Flash without.

The activations of an indexer are not modelled: such a family has parameters and cache only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Indexer, LatentAttention, Linear, Norm
from .config import Config, ConfigError, Data
from .deepseek import latent_attention
from .frame import decoder, decoder_layer, mtp_parameters, rotary_buffer, stacked
from .mlps import gated_mlp, routed_moe, router_biases

OWN, SHARED = "full", "shared"


class LatentFamily(Struct, frozen=True):
    """A family's defaults in transformers 5.17."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    vocab: int
    max_seq_len: int
    moe: Data
    latent: Data
    first_dense: int
    index_heads: int = 0


EXPERTS = {"ffn": 2048, "experts": 256, "top_k": 8, "shared": 1}
FEW_EXPERTS = {"ffn": 1536, "experts": 64, "top_k": 4, "shared": 1}
LATENT = {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256}
LATENT_LITE = {**LATENT, "q_lora_rank": 768}
V32 = LatentFamily(7168, 18432, 61, 128, 129280, 163840, EXPERTS, {}, 3, 64)
# GLM-5 (models/glm_moe_dsa), and GLM-4.7-Flash (models/glm4_moe_lite), which has no indexer
DSA = LatentFamily(6144, 12288, 78, 64, 154880, 202752, EXPERTS, LATENT, 3, 32)
LITE = LatentFamily(2048, 10240, 47, 20, 154880, 202752, FEW_EXPERTS, LATENT_LITE, 1)


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
    named = tuple(replace(one, name=f"indexer.{one.name}") for one in weights)
    return Indexer(parameters=named, key_dim=size, heads=heads)


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
    config: Config, hidden: int, family: LatentFamily, attention: Sequence[LatentAttention]
) -> tuple[Layer, ...]:
    mlp = gated_mlp(hidden, config.ffn(family.ffn), activation=config.activation())
    moe = routed_moe(config, hidden, **family.moe, router_impl="float_sigmoid")
    dense = _dense_layers(config, len(attention), family.first_dense)
    return stacked(
        zip(attention, dense, strict=True),
        lambda pair: decoder_layer(hidden, pair[0], mlp if pair[1] else moe),
    )


def read_latent(name: str, family: LatentFamily, config: Config) -> Arch:
    """The model that a config.json of one of these families describes."""
    config = config.with_defaults(family.latent)
    hidden, layers = config.hidden(family.hidden), config.layers(family.layers)
    plain = latent_attention(config, hidden, family.heads)
    attention = [plain] * layers
    if family.index_heads:
        if not plain.query_rank:
            raise ConfigError(f"model.config.q_lora_rank must be set: {name}'s indexer reads it")
        index = indexer(config, hidden, plain.query_rank, family.index_heads)
        plain = replace(plain, chosen=config.size("index_topk", default=2048))
        kinds = {OWN: replace(plain, index=index), SHARED: plain}
        attention = [kinds[kind] for kind in indexer_types(config, layers)]
    stack, vocab = _stack(config, hidden, family, attention), config.vocab(family.vocab)
    mtp = mtp_parameters(config, stack[-1], hidden, vocab)
    if family is DSA:  # GLM-5 publishes no copies of the embedding and the head
        modules = config.count("num_nextn_predict_layers")
        mtp -= modules * 2 * vocab * hidden
    return decoder(
        config,
        name,
        hidden,
        stack,
        vocab=vocab,
        max_seq_len=family.max_seq_len,
        trains=not family.index_heads,
        mtp_parameters=mtp,
        buffers=router_biases(stack) + rotary_buffer(plain.rope_dim),
    )


def read_deepseek_v32(config: Config) -> Arch:
    """DeepSeek-V3.2 (transformers 5.17 models/deepseek_v32): every layer has an indexer."""
    keys = {**config.data, "indexer_types": None, "index_topk_pattern": None}
    return read_latent("deepseek_v32", V32, Config(keys))


FAMILIES = {
    "deepseek_v32": read_deepseek_v32,
    "glm_moe_dsa": partial(read_latent, "glm_moe_dsa", DSA),
    "glm4_moe_lite": partial(read_latent, "glm4_moe_lite", LITE),
}
