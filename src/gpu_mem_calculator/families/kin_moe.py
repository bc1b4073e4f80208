"""Llama's kin with experts: Hunyuan, ERNIE 4.5, dots, MiniMax-M2.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch
from ..model.blocks import Attention, Moe, Norm, Weight
from .blocks import (
    FULL,
    SLIDING,
    biased_head,
    layer_types,
    nullable,
    shared_mlp,
    stacked_moe,
    text,
    typed_windows,
)
from .config import Config, ConfigError
from .kin import KIN, NONE, Kin, Windows, kin_decoder, kin_layer

HUNYUAN = KIN["hunyuan_v1_dense"]
ERNIE = Kin(hidden=2560, ffn=12288, layers=28, heads=20, kv_heads=4, vocab=103424,
            max_seq_len=131072, tied=True, bias=("use_bias", False),
            output_bias=("use_bias", False), mlp_bias=("use_bias", False))  # fmt: skip
M2 = Kin(hidden=3072, ffn=1536, layers=62, heads=48, kv_heads=8, head_dim=128, vocab=200064,
         max_seq_len=196608, bias=NONE, output_bias=NONE)  # fmt: skip


def _each(config: Config, name: str, layers: int, default: int) -> list[int]:
    """A number, or one a layer."""
    value = config.get(name)
    if not isinstance(value, list):
        return [config.size(name, default=default)] * layers
    if len(value) != layers:
        raise ConfigError(f"model.config.{name} has {len(value)} entries; it must have {layers}")
    return [Config({name: one}).size(name) for one in value]


def read_hunyuan_moe(data: Mapping[str, Any]) -> Arch:
    """Hunyuan-A13B (transformers 5.17 models/hunyuan_v1_moe): a shared MLP beside the experts."""
    config = Config(data)
    hidden = config.size("hidden_size", default=HUNYUAN.hidden)
    layers = config.size("num_hidden_layers", default=HUNYUAN.layers)
    ffn = config.size("intermediate_size", default=HUNYUAN.ffn)
    activation = text(config, "hidden_act", "silu")
    pairs = list(zip(_each(config, "num_experts", layers, 1),
                     _each(config, "moe_topk", layers, 1), strict=True))  # fmt: skip
    made = {
        (experts, top_k): kin_layer(config, HUNYUAN, hidden, stacked_moe(
            hidden, experts, top_k, ffn, router="gate.wg", activation=activation,
            shared=shared_mlp("shared_mlp", hidden, ffn, activation=activation)))
        for experts, top_k in dict.fromkeys(pairs)
    }  # fmt: skip
    stack = tuple(made[pair] for pair in pairs)
    return kin_decoder(config, "hunyuan_v1_moe", HUNYUAN, hidden, stack)


def _ernie_moe(config: Config, hidden: int) -> Moe:
    """Experts, a score bias that is a parameter, and one shared MLP as wide as several experts."""
    experts = config.size("moe_num_experts", "num_experts", default=64)
    ffn = config.size("moe_intermediate_size", default=1536)
    shared = config.count("moe_num_shared_experts", default=2)
    bias, activation = config.flag("use_bias", default=False), text(config, "hidden_act", "silu")
    plain = stacked_moe(
        hidden, experts, config.size("moe_k", "num_experts_per_tok", default=6), ffn,
        activation=activation,
        shared=shared_mlp("shared_experts", hidden, ffn * shared, bias=bias,
                          activation=activation) if shared else None,
    )  # fmt: skip
    name = "gate.moe_statics.e_score_correction_bias"
    return replace(plain, router=(*plain.router, Weight(name, (("one", 1), ("expert", experts)))))


def read_ernie4_5_moe(data: Mapping[str, Any]) -> Arch:
    """ERNIE 4.5 with experts (transformers 5.17 models/ernie4_5_moe)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=ERNIE.hidden)
    layers = config.size("num_hidden_layers", default=ERNIE.layers)
    dense = kin_layer(config, ERNIE, hidden)
    sparse = kin_layer(config, ERNIE, hidden, _ernie_moe(config, hidden))
    start = config.count("moe_layer_start_index", default=1)
    end = layers - 1 if config.get("moe_layer_end_index") == -1 else config.count(
        "moe_layer_end_index", default=layers - 1)  # fmt: skip
    step = config.size("moe_layer_interval", default=1)
    stack = tuple(
        sparse if (i + 1) % step == 0 and start <= i <= end else dense for i in range(layers)
    )
    head: dict[str, Any] = {}
    if config.flag("use_bias", default=False):
        vocab = config.size("vocab_size", default=ERNIE.vocab)
        tied = config.flag("tie_word_embeddings", default=True)
        head = biased_head(hidden, vocab, tied=tied)
    return kin_decoder(config, "ernie4_5_moe", ERNIE, hidden, stack, **head)


def _dots_windows(config: Config, layers: int) -> Windows:
    """Layers from `max_window_layers` on slide."""
    window = nullable(config, "sliding_window", 4096)
    first = config.count("max_window_layers", default=62)
    kinds = [SLIDING if window and i >= first else FULL for i in range(layers)]
    return typed_windows(layer_types(config, layers, kinds), window)


DOTS = Kin(hidden=4608, ffn=10944, layers=62, heads=32, kv_heads=32, vocab=152064,
           max_seq_len=2048, mlp_bias=NONE, qk_norms=("q_norm", "k_norm"),
           windows=_dots_windows)  # fmt: skip


def read_dots1(data: Mapping[str, Any]) -> Arch:
    """dots.llm1 (transformers 5.17 models/dots1)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=DOTS.hidden)
    layers = config.size("num_hidden_layers", default=DOTS.layers)
    activation = text(config, "hidden_act", "silu")
    ffn = config.size("moe_intermediate_size", default=1408)
    shared = config.count("n_shared_experts")
    moe = stacked_moe(
        hidden, config.size("n_routed_experts", "num_experts"), config.size("num_experts_per_tok"),
        ffn, activation=activation, router_impl="float_sigmoid",
        shared=shared_mlp("shared_experts", hidden, ffn * shared, activation=activation)
        if shared else None,
    )  # fmt: skip
    first = min(config.count("first_k_dense_replace"), layers)
    dense, sparse = (kin_layer(config, DOTS, hidden, mlp) for mlp in (None, moe))
    stack = (dense,) * first + (sparse,) * (layers - first)
    return kin_decoder(config, "dots1", DOTS, hidden, stack)


def read_minimax_m2(data: Mapping[str, Any]) -> Arch:
    """MiniMax-M2 (transformers 5.17 models/minimax_m2): norms over all of q and of k."""
    config = Config(data)
    hidden = config.size("hidden_size", default=M2.hidden)
    moe = stacked_moe(
        hidden, config.size("num_local_experts", "num_experts", default=256),
        config.size("num_experts_per_tok", default=8),
        config.size("intermediate_size", default=M2.ffn),
        activation=text(config, "hidden_act", "silu"), router_impl="float_sigmoid",
    )  # fmt: skip
    layer = kin_layer(config, M2, hidden, moe)
    mixer = layer.mixer
    assert isinstance(mixer, Attention)
    norms = (Norm("q_norm", ("heads", mixer.heads * mixer.head_dim)),
             Norm("k_norm", ("kv_heads", mixer.kv_heads * mixer.head_dim)))  # fmt: skip
    layer = replace(layer, mixer=replace(mixer, norms=norms))
    stack = (layer,) * config.size("num_hidden_layers", default=M2.layers)
    return kin_decoder(config, "minimax_m2", M2, hidden, stack)


FAMILIES = {
    "hunyuan_v1_moe": read_hunyuan_moe,
    "ernie4_5_moe": read_ernie4_5_moe,
    "dots1": read_dots1,
    "minimax_m2": read_minimax_m2,
}
