"""Llama with experts: Mixtral, Hunyuan, ERNIE 4.5, dots, MiniMax-M2 (transformers 5.17)."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Moe, Weight
from .attention import whole_norms
from .config import Config, ConfigError, Fields
from .frame import biased_head, stacked
from .llama import HUNYUAN, MISTRAL, QK_NORMS
from .llama_like import (
    ATTENTION_ONLY,
    NO_BIASES,
    LlamaLike,
    expert_biases,
    readers,
    row_decoder,
    row_layer,
)
from .mlps import gated_mlp, routed_moe, router_biases, stacked_moe
from .windows import Windows, patterned, same

LOCAL: Fields = {"ffn_key": "intermediate_size", "counts": ("num_local_experts", "num_experts")}
FLOAT_SIGMOID: Fields = {"router_impl": "float_sigmoid"}  # dots.llm1
# No expert of Mixtral and MiniMax-M2 is shared; a config must say how many dots.llm1 has.
MIXTRAL: Fields = {**LOCAL, "router_impl": "softmax_wide", "jitter_key": "router_jitter_noise"}
MIXTRAL_EXPERTS = partial(routed_moe, experts=8, top_k=2, ffn=14336, **MIXTRAL)


def dots_sparse(config: Config, layers: int) -> list[bool]:
    """Layers from `first_k_dense_replace` on have experts."""
    first = config.count("first_k_dense_replace")
    return [i >= first for i in range(layers)]


def dots_windows(config: Config, layers: int) -> Windows:
    """Layers from `max_window_layers` on slide."""
    first = config.count("max_window_layers", default=62)
    window = config.nullable("sliding_window", 4096) or None
    return patterned(config, layers, window, lambda i: i >= first)


def ernie_experts(config: Config, hidden: int) -> Moe:
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


def ernie_sparse(config: Config, layers: int) -> list[bool]:
    """Experts on each `moe_layer_interval`-th layer between two layers, both included."""
    start = config.count("moe_layer_start_index", default=1)
    open_end = config.get("moe_layer_end_index") == -1
    end = layers - 1 if open_end else config.count("moe_layer_end_index", default=layers - 1)
    step = config.size("moe_layer_interval", default=1)
    return [(i + 1) % step == 0 and start <= i <= end for i in range(layers)]


def ernie_frame(config: Config, hidden: int) -> Fields:
    """`use_bias`: a bias on the logits, too."""
    if not config.flag("use_bias"):
        return {}
    tied = config.flag("tie_word_embeddings", default=True)
    return biased_head(hidden, config.vocab(ERNIE_MOE.vocab), tied=tied)


def _each(config: Config, name: str, layers: int, default: int) -> list[int]:
    """A number for each layer; the config has a list or one number for all."""
    value = config.get(name)
    if not isinstance(value, list):
        return [config.size(name, default=default)] * layers
    if len(value) != layers:
        raise ConfigError(f"model.config.{name} has {len(value)} entries; it must have {layers}")
    return [Config({name: one}).size(name) for one in value]


# Their routers stay in fp32 whatever the model's dtype, which the activations do not cover.
HUNYUAN_MOE = replace(HUNYUAN, trains=False)
ERNIE_MOE = LlamaLike(
    *(2560, 12288, 28, 20, 4, 103424, 131072),
    tied=True,
    biases=(("use_bias", False),) * 3,
    rotary_impl="ernie",
    experts=ernie_experts,
    sparse=ernie_sparse,
    frame=ernie_frame,
    trains=False,
)
DOTS = LlamaLike(
    *(4608, 10944, 62, 32, 32, 152064, 2048),
    biases=ATTENTION_ONLY,
    qk_norms=QK_NORMS,
    experts=partial(routed_moe, experts=None, top_k=None, ffn=1408, shared=0, **FLOAT_SIGMOID),
    sparse=dots_sparse,
    windows=dots_windows,
    buffers=expert_biases,
)
MINIMAX_M2 = LlamaLike(
    *(3072, 1536, 62, 48, 8, 200064, 196608),
    head_dim=128,
    biases=NO_BIASES,
    attention=whole_norms,
    rotary=1.0,
    rotary_impl="joined",
    experts=partial(
        routed_moe, experts=256, top_k=8, ffn=1536, **LOCAL, router_impl="sigmoid_wide"
    ),
    buffers=lambda config, layers: router_biases(layers, "e_score_correction_bias"),
)


def read_hunyuan_moe(config: Config) -> Arch:
    """Hunyuan-A13B (models/hunyuan_v1_moe): a shared MLP beside the experts."""
    row = HUNYUAN_MOE
    hidden, layers, ffn = config.hidden(row.hidden), config.layers(row.layers), config.ffn(row.ffn)
    activation = config.activation()
    shared = gated_mlp(hidden, ffn, prefix="shared_mlp.", activation=activation)
    fields: Fields = {"router": "gate.wg", "activation": activation, "shared": shared}

    def layer(pair: tuple[int, int]) -> Layer:
        return row_layer(config, row, hidden, stacked_moe(hidden, *pair, ffn, **fields))

    counts = (_each(config, name, layers, 1) for name in ("num_experts", "moe_topk"))
    return row_decoder(config, "hunyuan_v1_moe", row, stacked(zip(*counts, strict=True), layer))


FAMILIES = {
    **readers({"mixtral": replace(MISTRAL, experts=MIXTRAL_EXPERTS, windows=same(None))}),
    **readers({"dots1": DOTS, "ernie4_5_moe": ERNIE_MOE, "minimax_m2": MINIMAX_M2}),
    "hunyuan_v1_moe": read_hunyuan_moe,
}
