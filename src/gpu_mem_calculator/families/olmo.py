"""OLMo 2 (norms behind the branches) and OLMoE: both norm the whole query and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Norm
from .blocks import FULL, SLIDING, head_counts, layer_types, stacked_moe, text, typed_windows
from .config import Config
from .llama import decoder, gated_mlp, pre_norms, separate_attention


def normed_attention(
    config: Config, hidden: int, heads: int, impl: str, *, fixed: bool = False
) -> Attention:
    """q and k pass a norm over all their heads; OLMoE (`fixed`) sizes it from hidden / heads."""
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=heads, kv_heads=None)
    width = hidden // heads if fixed else head_dim
    bias = config.flag("attention_bias", default=False)
    return separate_attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        bias=bias,
        output_bias=bias,
        rotary_dim=head_dim,
        norms=(
            Norm("q_norm", ("heads", hidden if fixed else heads * width), impl),
            Norm("k_norm", ("kv_heads", kv_heads * width), impl),
        ),
        clipped=fixed and config.get("clip_qkv") is not None,
        dropout=config.number("attention_dropout"),
    )


def read_olmo3(data: Mapping[str, Any]) -> Arch:
    """OLMo 3 (transformers 5.17 models/olmo3): OLMo 2, three layers of four under a window.

    Parameters and cache; its activations are not modelled.
    """
    config, arch = Config(data), read_olmo2(data)
    layers = len(arch.layers)
    types = layer_types(config, layers, [SLIDING if (i + 1) % 4 else FULL for i in range(layers)])
    windows = typed_windows(types, config.size("sliding_window", default=4096))
    return replace(arch, family="olmo3", windows=windows, trains=False)


def read_olmo2(data: Mapping[str, Any]) -> Arch:
    """OLMo 2 (transformers 5.17 models/olmo2); its norms multiply by the weight in fp32."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    embed = ("embed", hidden)
    mixer = normed_attention(config, hidden, 32, "rms_float")
    ffn = config.size("intermediate_size", default=11008)
    layer = Layer(
        kind="dense",
        mixer=mixer,
        mlp=gated_mlp(hidden, ffn, activation=text(config, "hidden_act", "silu")),
        norms=(
            ("post", Norm("post_attention_layernorm", embed, "rms_float")),
            ("post_mlp", Norm("post_feedforward_layernorm", embed, "rms_float")),
        ),
    )
    return decoder(
        config,
        "olmo2",
        hidden,
        (layer,) * config.size("num_hidden_layers", default=32),
        vocab=50304,
        max_seq_len=2048,
        tied=False,
        rotary_dim=mixer.head_dim,
        norm_impl="rms_float",
    )


def read_olmoe(data: Mapping[str, Any]) -> Arch:
    """OLMoE (transformers 5.17 models/olmoe)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2048)
    mixer = normed_attention(config, hidden, 16, "rms", fixed=True)
    layer = Layer(
        kind="moe",
        mixer=mixer,
        mlp=stacked_moe(
            hidden,
            config.size("num_experts", "num_local_experts", default=64),
            config.size("num_experts_per_tok", default=8),
            config.size("intermediate_size", default=2048),
            activation=text(config, "hidden_act", "silu"),
        ),
        norms=pre_norms(hidden),
    )
    return decoder(
        config,
        "olmoe",
        hidden,
        (layer,) * config.size("num_hidden_layers", default=16),
        vocab=50304,
        max_seq_len=4096,
        tied=False,
        rotary_dim=mixer.head_dim,
    )


FAMILIES = {"olmo2": read_olmo2, "olmo3": read_olmo3, "olmoe": read_olmoe}
