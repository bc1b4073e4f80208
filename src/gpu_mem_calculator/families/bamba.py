"""Bamba (Mamba-2 with some attention), Falcon-H1 (both in every layer), Granite 4 and Granite MoE.

Where a layer has Mamba or a shared MLP beside experts: parameters and cache only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Mixer, Mlp, Moe, Norm
from .attention import head_counts, separate_attention
from .config import Config
from .frame import decoder, rotary_buffer
from .hybrid_layers import LINEAR, indexed, mixed_types
from .llama import granite_frame
from .mamba2 import named_mixer
from .mlps import gated_mlp, stacked_moe
from .norms import pre_norms
from .windows import FULL

MAMBA = "mamba"


def _attention(
    config: Config, hidden: int, *, rotary: float = 1.0, kv_heads: int | None = 8
) -> Mixer:
    counts = head_counts(config, hidden, heads=32, kv_heads=kv_heads)
    bias = config.flag("attention_bias", default=False)
    return separate_attention(
        hidden, *counts, bias=bias, output_bias=bias, rotary_dim=int(counts[2] * rotary)
    )


def _feed_forward(config: Config, hidden: int, *, bias: str = "mlp_bias") -> Mlp:
    ffn = config.size("intermediate_size", default=14336)
    activation = config.text("hidden_act", "silu")
    return gated_mlp(hidden, ffn, bias=config.flag(bias, default=False), activation=activation)


def _norms(hidden: int) -> tuple[tuple[str, Norm], ...]:
    embed = ("embed", hidden)
    return (("pre", Norm("input_layernorm", embed)), ("pre_mlp", Norm("pre_ff_layernorm", embed)))


def read_bamba(data: Mapping[str, Any]) -> Arch:
    """Bamba (transformers 5.17 models/bamba); `attn_layer_indices` have attention."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    layers = config.size("num_hidden_layers", default=32)
    mixers = {FULL: _attention(config, hidden, rotary=0.5), LINEAR: named_mixer(config, hidden)}
    by_kind = {
        kind: Layer(
            kind="dense" if kind == FULL else MAMBA,
            mixer=mixer,
            mixer_name="self_attn" if kind == FULL else MAMBA,
            mlp=_feed_forward(config, hidden),
            mlp_name="feed_forward",
            norms=_norms(hidden),
        )
        for kind, mixer in mixers.items()
    }
    types = indexed(config, "attn_layer_indices", layers, ())
    return _hybrid(config, "bamba", hidden, tuple(by_kind[kind] for kind in types), 262144)


def _hybrid(
    config: Config, family: str, hidden: int, layers: tuple[Layer, ...], max_seq_len: int
) -> Arch:
    norm = Norm("model.final_layernorm", ("embed", hidden))
    return decoder(
        config,
        family,
        hidden,
        layers,
        vocab=128000,
        max_seq_len=max_seq_len,
        tied=False,
        rotary_dim=0,
        buffers=(),
        final_norm=norm,
        trains=False,
    )


def read_falcon_h1(data: Mapping[str, Any]) -> Arch:
    """Falcon-H1 (transformers 5.17 models/falcon_h1): Mamba-2 and attention read the same input."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    layers = config.size("num_hidden_layers", default=32)
    keys: dict[str, Any] = {"mamba_d_ssm": 1024, **data}
    normed = config.flag("mamba_rms_norm", default=False)
    layer = Layer(
        kind="dense",
        mixer=_attention(config, hidden),
        beside=((MAMBA, named_mixer(Config(keys), hidden, normed=normed)),),
        mlp=_feed_forward(config, hidden),
        mlp_name="feed_forward",
        norms=_norms(hidden),
    )
    return _hybrid(config, "falcon_h1", hidden, (layer,) * layers, 8192)


def _granite_experts(config: Config, hidden: int) -> Moe | None:
    """Granite's experts; none where there are no experts."""
    experts = config.count("num_local_experts", default=8)
    if not experts:
        return None
    return stacked_moe(
        hidden,
        experts,
        config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size", default=11008),
        router="router",
        activation=config.text("hidden_act", "silu"),
    )


def _granite_shared(config: Config, hidden: int, *, default: int) -> Mlp | None:
    """`shared_mlp`, gate and up in one matrix, for every token."""
    ffn = config.count("shared_intermediate_size", default=default)
    if not ffn:
        return None
    embed = ("embed", hidden)
    return Mlp(
        inputs=(Linear("shared_mlp.input_linear", embed, ("ffn", 2 * ffn)),),
        output=Linear("shared_mlp.output_linear", ("ffn", ffn), embed),
        ffn=ffn,
        gated=True,
        activation=config.text("hidden_act", "silu"),
    )


def _granite_layer(config: Config, hidden: int, kind: str, mixer: Mixer, *, shared: int) -> Layer:
    """Experts and shared MLP side by side; Granite 4 without experts has the shared one alone."""
    moe, beside = _granite_experts(config, hidden), _granite_shared(config, hidden, default=shared)
    mlp: Mlp | Moe | None = moe or beside
    return Layer(
        kind="moe" if moe else "dense" if kind == FULL else MAMBA,
        mixer=mixer,
        mixer_name="self_attn" if kind == FULL else MAMBA,
        mlp=mlp,
        mlp_name="block_sparse_moe" if moe else "",
        norms=pre_norms(hidden),
        extra=tuple(beside.weights()) if moe and beside else (),
    )


def read_granite_moe(family: str, data: Mapping[str, Any]) -> Arch:
    """granitemoe and granitemoeshared (transformers 5.17): attention, then experts."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    if family == "granitemoe":
        config = Config({**data, "shared_intermediate_size": 0})
    layer = _granite_layer(
        config, hidden, FULL, _attention(config, hidden, kv_heads=None), shared=0
    )
    layers = (layer,) * config.size("num_hidden_layers", default=32)
    return decoder(
        config,
        family,
        hidden,
        layers,
        vocab=32000,
        max_seq_len=2048,
        tied=False,
        rotary_dim=getattr(layer.mixer, "rotary_dim", 0),
        trains=not layer.extra,
        **granite_frame(config, hidden),
    )


def read_granite_hybrid(data: Mapping[str, Any]) -> Arch:
    """Granite 4 (transformers 5.17 models/granitemoehybrid): `layer_types` mix both mixers.

    Without Mamba and without experts it is Granite, and has a training estimate.
    """
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    layers = config.size("num_hidden_layers", default=32)
    types = mixed_types(config, "layer_types", layers, [LINEAR] * layers)
    mixers: dict[str, Mixer] = {FULL: _attention(config, hidden, kv_heads=None)}
    if LINEAR in types:
        mixers[LINEAR] = named_mixer(config, hidden)
    by_kind = {
        kind: _granite_layer(config, hidden, kind, mixer, shared=1024)
        for kind, mixer in mixers.items()
    }
    rotary_dim = mixers[FULL].rotary_dim
    rope = config.get("position_embedding_type") == "rope"
    return decoder(
        config,
        "granitemoehybrid",
        hidden,
        tuple(by_kind[kind] for kind in types),
        vocab=32000,
        max_seq_len=2048,
        tied=False,
        rotary_dim=rotary_dim,
        buffers=rotary_buffer(rotary_dim) if rope else (),
        trains=rope and LINEAR not in types and by_kind[FULL].kind == "dense",
        **granite_frame(config, hidden),
    )


FAMILIES = {
    "bamba": read_bamba,
    "falcon_h1": read_falcon_h1,
    "granitemoe": partial(read_granite_moe, "granitemoe"),
    "granitemoeshared": partial(read_granite_moe, "granitemoeshared"),
    "granitemoehybrid": read_granite_hybrid,
}
