"""Bamba (Mamba-2 with some attention), Falcon-H1 (both in every layer), Granite 4 and Granite MoE.

Where a layer has Mamba or a shared MLP beside experts: parameters and cache only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Mixer, Mlp, Moe
from .attention import head_counts, separate_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer, rotary_buffer, stacked
from .llama import granite_frame
from .mamba2 import named_mixer
from .mlps import fused_mlp, gated_mlp, stacked_moe
from .norms import norms_at, rms
from .windows import FULL, LINEAR, indexed, mixed_types

MAMBA = "mamba"
FEED_FORWARD_NORMS = (("pre", "input_layernorm"), ("pre_mlp", "pre_ff_layernorm"))


def _attention(
    config: Config, hidden: int, *, rotary: float = 1.0, kv_heads: int | None = 8
) -> Attention:
    counts = head_counts(config, hidden, heads=32, kv_heads=kv_heads)
    bias, rotary_dim = config.flag("attention_bias"), int(counts[2] * rotary)
    return separate_attention(hidden, *counts, bias=bias, rotary_dim=rotary_dim)


def _layer(config: Config, hidden: int, mixer: Mixer, **rest: Any) -> Layer:
    bias, activation = config.flag("mlp_bias"), config.activation()
    mlp = gated_mlp(hidden, config.ffn(14336), bias=bias, activation=activation)
    norms = norms_at(FEED_FORWARD_NORMS, hidden)
    return decoder_layer(hidden, mixer, mlp, mlp_name="feed_forward", norms=norms, **rest)


def _hybrid(
    config: Config, family: str, hidden: int, layers: tuple[Layer, ...], max_seq_len: int
) -> Arch:
    sizes: Fields = {"vocab": 128000, "max_seq_len": max_seq_len, "trains": False}
    norm = rms("model.final_layernorm", hidden)
    return decoder(config, family, hidden, layers, **sizes, final_norm=norm)


def read_bamba(config: Config) -> Arch:
    """Bamba (transformers 5.17 models/bamba); `attn_layer_indices` have attention."""
    hidden = config.hidden(4096)
    attention, mamba = _attention(config, hidden, rotary=0.5), named_mixer(config, hidden)
    by_kind = {
        FULL: _layer(config, hidden, attention),
        LINEAR: _layer(config, hidden, mamba, kind=MAMBA, mixer_name=MAMBA),
    }
    types = indexed(config, "attn_layer_indices", config.layers(32), ())
    return _hybrid(config, "bamba", hidden, tuple(by_kind[kind] for kind in types), 262144)


def read_falcon_h1(config: Config) -> Arch:
    """Falcon-H1 (transformers 5.17 models/falcon_h1): Mamba-2 and attention read the same input."""
    hidden, normed = config.hidden(4096), config.flag("mamba_rms_norm")
    mamba = named_mixer(Config({"mamba_d_ssm": 1024, **config.data}), hidden, normed=normed)
    layer = _layer(config, hidden, _attention(config, hidden), beside=((MAMBA, mamba),))
    return _hybrid(config, "falcon_h1", hidden, (layer,) * config.layers(32), 8192)


def _granite_experts(config: Config, hidden: int) -> Moe | None:
    """Granite's experts; none where there are no experts."""
    experts = config.count("num_local_experts", default=8)
    if not experts:
        return None
    top_k, activation = config.size("num_experts_per_tok", default=2), config.activation()
    fields = {"router": "router", "activation": activation}
    return stacked_moe(hidden, experts, top_k, config.ffn(11008), **fields)


def _granite_shared(config: Config, hidden: int, *, default: int) -> Mlp | None:
    """`shared_mlp`, gate and up in one matrix, for every token."""
    ffn = config.count("shared_intermediate_size", default=default)
    names = ("shared_mlp.input_linear", "shared_mlp.output_linear")
    return fused_mlp(hidden, ffn, names, activation=config.activation()) if ffn else None


def _granite_layer(config: Config, hidden: int, kind: str, mixer: Mixer, *, shared: int) -> Layer:
    """Experts and shared MLP side by side; Granite 4 without experts has the shared one alone."""
    moe, beside = _granite_experts(config, hidden), _granite_shared(config, hidden, default=shared)
    return decoder_layer(
        hidden,
        mixer,
        moe or beside,
        kind="moe" if moe else "dense" if kind == FULL else MAMBA,
        mixer_name="self_attn" if kind == FULL else MAMBA,
        mlp_name="block_sparse_moe" if moe else "",
        extra=tuple(beside.weights()) if moe and beside else (),
    )


def _granite(
    config: Config, family: str, hidden: int, layers: tuple[Layer, ...], **rest: Any
) -> Arch:
    fields: Fields = {"vocab": 32000, "max_seq_len": 2048, **granite_frame(config, hidden)}
    return decoder(config, family, hidden, layers, **fields, **rest)


def read_granite_moe(family: str, config: Config) -> Arch:
    """granitemoe and granitemoeshared (transformers 5.17): attention, then experts."""
    hidden, layers = config.hidden(4096), config.layers(32)
    if family == "granitemoe":
        config = Config({**config.data, "shared_intermediate_size": 0})
    attention = _attention(config, hidden, kv_heads=None)
    layer = _granite_layer(config, hidden, FULL, attention, shared=0)
    fields: Fields = {"rotary_dim": attention.rotary_dim, "trains": not layer.extra}
    return _granite(config, family, hidden, (layer,) * layers, **fields)


def read_granite_hybrid(config: Config) -> Arch:
    """Granite 4 (transformers 5.17 models/granitemoehybrid): `layer_types` mix both mixers.

    Without Mamba and without experts it is Granite, and has a training estimate.
    """
    hidden, layers = config.hidden(4096), config.layers(32)
    types = mixed_types(config, "layer_types", layers, [LINEAR] * layers)
    attention = _attention(config, hidden, kv_heads=None)

    def layer(kind: str) -> Layer:
        mixer = attention if kind == FULL else named_mixer(config, hidden)
        return _granite_layer(config, hidden, kind, mixer, shared=1024)

    rope = config.get("position_embedding_type") == "rope"
    trains = rope and LINEAR not in types and layer(FULL).kind == "dense"
    buffers = rotary_buffer(attention.rotary_dim) if rope else ()
    fields: Fields = {"buffers": buffers, "trains": trains}
    return _granite(config, "granitemoehybrid", hidden, stacked(types, layer), **fields)


FAMILIES = {
    "bamba": read_bamba,
    "falcon_h1": read_falcon_h1,
    "granitemoe": partial(read_granite_moe, "granitemoe"),
    "granitemoeshared": partial(read_granite_moe, "granitemoeshared"),
    "granitemoehybrid": read_granite_hybrid,
}
