"""Command R and Command R7B: parallel branches behind one hand-written layer norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Norm
from .blocks import head_counts, layer_types, nullable, text, typed_windows
from .config import Config
from .llama import decoder, gated_mlp, separate_attention


def cohere_layer(config: Config, hidden: int, rotary_dim: int | None, **rest: Any) -> Layer:
    """One norm, attention and MLP side by side; the rotary part runs in fp32."""
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=64, kv_heads=None)
    bias = config.flag("attention_bias", default=False)
    norms: tuple[Norm, ...] = ()
    if rest.pop("qk_norm", False):
        size = ("head_dim", head_dim)
        norms = (
            Norm("q_norm", size, "layer_float", lead=(("heads", heads),)),
            Norm("k_norm", size, "layer_float", lead=(("kv_heads", kv_heads),)),
        )
    return Layer(
        kind="dense",
        mixer=separate_attention(
            hidden,
            heads,
            kv_heads,
            head_dim,
            bias=bias,
            output_bias=bias,
            norms=norms,
            rotary_dim=head_dim if rotary_dim is None else rotary_dim,
            rotary_impl="float",
            dropout=config.number("attention_dropout"),
        ),
        mlp=gated_mlp(
            hidden,
            config.size("intermediate_size", default=22528),
            activation=text(config, "hidden_act", "silu"),
        ),
        norms=(("pre", Norm("input_layernorm", ("embed", hidden), "layer_float")),),
        parallel=True,
    )


def cohere_frame(config: Config, family: str, layers: tuple[Layer, ...], **rest: Any) -> Arch:
    """What both generations have around the stack."""
    hidden = config.size("hidden_size", default=8192)
    _, _, head_dim = head_counts(config, hidden, heads=64, kv_heads=None)
    return decoder(
        config,
        family,
        hidden,
        layers,
        vocab=256000,
        max_seq_len=8192,
        tied=True,
        rotary_dim=head_dim,
        norm_impl="layer_float",
        logit_scale=config.number("logit_scale", default=0.0625),
        **rest,
    )


def read_cohere(data: Mapping[str, Any]) -> Arch:
    """Command R (transformers 5.17 models/cohere)."""
    config = Config(data)
    layer = cohere_layer(
        config,
        config.size("hidden_size", default=8192),
        None,
        qk_norm=config.flag("use_qk_norm", default=False),
    )
    layers = (layer,) * config.size("num_hidden_layers", default=40)
    return cohere_frame(config, "cohere", layers)


def read_cohere2(data: Mapping[str, Any]) -> Arch:
    """Command R7B (transformers 5.17 models/cohere2): rotary only where a window slides."""
    config = Config(data)
    hidden = config.size("hidden_size", default=8192)
    count = config.size("num_hidden_layers", default=40)
    every = config.size("sliding_window_pattern", default=4)
    names = ("full_attention", "sliding_attention")
    pattern = [names[bool((i + 1) % every)] for i in range(count)]
    types = layer_types(config, count, pattern)
    windows = typed_windows(types, nullable(config, "sliding_window", 4096))
    full, sliding = (cohere_layer(config, hidden, dim) for dim in (0, None))
    layers = tuple(sliding if window else full for window in windows or (None,) * count)
    return cohere_frame(config, "cohere2", layers, windows=windows)


FAMILIES = {"cohere": read_cohere, "cohere2": read_cohere2}
