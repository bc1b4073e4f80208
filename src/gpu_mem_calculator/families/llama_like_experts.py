"""Llama with experts: Mixtral, Hunyuan, ERNIE 4.5, dots, MiniMax-M2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch
from ..model.blocks import Moe, Weight
from .attention import whole_norms
from .config import Config, ConfigError
from .frame import biased_head
from .llama import ATTENTION_ONLY, MISTRAL, ROWS
from .llama_like import (
    NO_BIASES,
    LlamaLike,
    Windows,
    expert_biases,
    read_row,
    row_decoder,
    row_layer,
    width,
)
from .mlps import routed_moe, router_biases, shared_mlp, stacked_moe
from .windows import patterned, same


def mixtral_experts(config: Config, hidden: int) -> Moe:
    """Mixtral's experts; none is shared."""
    return routed_moe(
        config,
        hidden,
        experts=8,
        top_k=2,
        ffn=14336,
        ffn_key="intermediate_size",
        counts=("num_local_experts", "num_experts"),
        router_impl="softmax_wide",
        jitter=config.number("router_jitter_noise") > 0,
    )


def minimax_m2_experts(config: Config, hidden: int) -> Moe:
    """MiniMax-M2's experts; none is shared."""
    return routed_moe(
        config,
        hidden,
        experts=256,
        top_k=8,
        ffn=1536,
        ffn_key="intermediate_size",
        counts=("num_local_experts", "num_experts"),
        router_impl="sigmoid_wide",
    )


def dots_windows(config: Config, layers: int) -> Windows:
    """Layers from `max_window_layers` on slide."""
    first = config.count("max_window_layers", default=62)
    window = config.nullable("sliding_window", 4096) or None
    return patterned(config, layers, window, lambda i: i >= first)


# Their routers stay in fp32 whatever the model's dtype, which the activations do not cover.
HUNYUAN = replace(ROWS["hunyuan_v1_dense"], trains=False)
ERNIE = replace(
    ROWS["ernie4_5"],
    hidden=2560,
    ffn=12288,
    layers=28,
    heads=20,
    kv_heads=4,
    head_dim=None,
    trains=False,
)
DOTS = LlamaLike(
    hidden=4608,
    ffn=10944,
    layers=62,
    heads=32,
    kv_heads=32,
    vocab=152064,
    max_seq_len=2048,
    biases=ATTENTION_ONLY,
    qk_norms=("q_norm", "k_norm"),
    windows=dots_windows,
    buffers=expert_biases,
)
MIXTRAL = replace(MISTRAL, experts=mixtral_experts, windows=same(None))
MINIMAX_M2 = LlamaLike(
    hidden=3072,
    ffn=1536,
    layers=62,
    heads=48,
    kv_heads=8,
    head_dim=128,
    vocab=200064,
    max_seq_len=196608,
    biases=NO_BIASES,
    attention=whole_norms,
    rotary=1.0,
    rotary_impl="joined",
    experts=minimax_m2_experts,
    buffers=lambda config, layers: router_biases(layers, "e_score_correction_bias"),
)


def read_mixtral(data: Mapping[str, Any]) -> Arch:
    """Mixtral (transformers 5.17 models/mixtral): every layer has experts."""
    return read_row("mixtral", MIXTRAL, data)


def read_minimax_m2(data: Mapping[str, Any]) -> Arch:
    """MiniMax-M2 (transformers 5.17 models/minimax_m2): norms over all of q and of k."""
    return read_row("minimax_m2", MINIMAX_M2, data)


def _each(config: Config, name: str, layers: int, default: int) -> list[int]:
    """A number for each layer; the config has a list or one number for all."""
    value = config.get(name)
    if not isinstance(value, list):
        return [config.size(name, default=default)] * layers
    if len(value) != layers:
        raise ConfigError(f"model.config.{name} has {len(value)} entries; it must have {layers}")
    return [Config({name: one}).size(name) for one in value]


def read_hunyuan_moe(data: Mapping[str, Any]) -> Arch:
    """Hunyuan-A13B (transformers 5.17 models/hunyuan_v1_moe): a shared MLP beside the experts."""
    config = Config(data)
    hidden = width(config, HUNYUAN)
    layers = config.size("num_hidden_layers", default=HUNYUAN.layers)
    ffn = config.size("intermediate_size", default=HUNYUAN.ffn)
    activation = config.text("hidden_act", "silu")
    shared = shared_mlp("shared_mlp", hidden, ffn, activation=activation)
    experts = _each(config, "num_experts", layers, 1)
    pairs = list(zip(experts, _each(config, "moe_topk", layers, 1), strict=True))
    by_pair = {
        pair: row_layer(
            config,
            HUNYUAN,
            hidden,
            stacked_moe(hidden, *pair, ffn, router="gate.wg", activation=activation, shared=shared),
        )
        for pair in dict.fromkeys(pairs)
    }
    stack = tuple(by_pair[pair] for pair in pairs)
    return row_decoder(config, "hunyuan_v1_moe", HUNYUAN, stack)


def _ernie_moe(config: Config, hidden: int) -> Moe:
    """Experts, a score bias that is a parameter, and one shared MLP as wide as several experts."""
    moe = routed_moe(
        config,
        hidden,
        experts=64,
        top_k=6,
        ffn=1536,
        shared=2,
        bias_key="use_bias",
        counts=("moe_num_experts", "num_experts"),
        top_k_keys=("moe_k", "num_experts_per_tok"),
        shared_key="moe_num_shared_experts",
    )
    name = "gate.moe_statics.e_score_correction_bias"
    bias = Weight(name, (("one", 1), ("expert", moe.num_experts)))
    return replace(moe, router=(*moe.router, bias))


def read_ernie4_5_moe(data: Mapping[str, Any]) -> Arch:
    """ERNIE 4.5 with experts (transformers 5.17 models/ernie4_5_moe)."""
    config = Config(data)
    hidden = width(config, ERNIE)
    layers = config.size("num_hidden_layers", default=ERNIE.layers)
    dense = row_layer(config, ERNIE, hidden)
    sparse = row_layer(config, ERNIE, hidden, _ernie_moe(config, hidden))
    start = config.count("moe_layer_start_index", default=1)
    open_end = config.get("moe_layer_end_index") == -1
    end = layers - 1 if open_end else config.count("moe_layer_end_index", default=layers - 1)
    step = config.size("moe_layer_interval", default=1)
    stack = tuple(
        sparse if (i + 1) % step == 0 and start <= i <= end else dense for i in range(layers)
    )
    head: dict[str, Any] = {}
    if config.flag("use_bias", default=False):
        vocab = config.size("vocab_size", default=ERNIE.vocab)
        tied = config.flag("tie_word_embeddings", default=True)
        head = biased_head(hidden, vocab, tied=tied)
    return row_decoder(config, "ernie4_5_moe", ERNIE, stack, **head)


def read_dots1(data: Mapping[str, Any]) -> Arch:
    """dots.llm1 (transformers 5.17 models/dots1)."""
    config = Config(data)
    hidden = width(config, DOTS)
    layers = config.size("num_hidden_layers", default=DOTS.layers)
    moe = routed_moe(
        config, hidden, experts=None, top_k=None, ffn=1408, shared=0, router_impl="float_sigmoid"
    )
    first = min(config.count("first_k_dense_replace"), layers)
    dense, sparse = (row_layer(config, DOTS, hidden, mlp) for mlp in (None, moe))
    return row_decoder(config, "dots1", DOTS, (dense,) * first + (sparse,) * (layers - first))


FAMILIES = {
    "mixtral": read_mixtral,
    "hunyuan_v1_moe": read_hunyuan_moe,
    "ernie4_5_moe": read_ernie4_5_moe,
    "dots1": read_dots1,
    "minimax_m2": read_minimax_m2,
}
