"""MiMo: 7B is Qwen2 with a prediction module, V2-Flash mixes windows and sinks.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Linear, Mlp, Moe, Weight
from .attention import head_counts, partial_rotary
from .config import Config
from .frame import decoder
from .llama_like import read_row
from .mlps import gated_mlp, stacked_moe
from .norms import pre_norms
from .qwen import QWEN2
from .windows import FULL, SLIDING, layer_types, typed_windows


def read_mimo(data: Mapping[str, Any]) -> Arch:
    """MiMo-7B (modeling_mimo.py of XiaomiMiMo/MiMo-7B-Base): the layers are Qwen2's.

    A prediction module is one more layer, three norms and a projection from 2 x hidden.
    """
    defaults = {
        "num_key_value_heads": 8,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "vocab_size": 151680,
    }
    known = {key: value for key, value in data.items() if value is not None}
    arch = read_row("qwen2", QWEN2, {**defaults, **known})
    modules = Config(data).count("num_nextn_predict_layers", default=0)
    parameters = arch.layers[0].num_parameters + 3 * arch.hidden + 2 * arch.hidden**2
    return replace(arch, family="mimo", mtp_parameters=modules * parameters, trains=False)


def _attention(config: Config, hidden: int, kind: str) -> Attention:
    """Sliding layers have another number of key-value heads, and sinks."""
    keys = {
        "num_attention_heads": "swa_num_attention_heads",
        "head_dim": "swa_head_dim",
        "num_key_value_heads": "swa_num_key_value_heads",
        "v_head_dim": "swa_v_head_dim",
    }
    slides = kind == SLIDING
    sizes = {
        name: config.get(other) if slides else config.get(name) for name, other in keys.items()
    }
    if slides:  # what is not said of them is as in the full layers, but for the heads of k and v
        sizes |= {
            name: config.get(name)
            for name, value in sizes.items()
            if value is None and name != "num_key_value_heads"
        }
    plain = Config({name: value for name, value in sizes.items() if value is not None})
    heads, kv_heads, size = head_counts(
        plain, hidden, heads=64, kv_heads=8 if slides else 4, head_dim=192
    )
    value = plain.size("v_head_dim", default=128)
    bias = config.flag("attention_bias", default=False)
    embed = ("embed", hidden)
    return Attention(
        inputs=(
            Linear("q_proj", embed, ("heads", heads * size), bias),
            Linear("k_proj", embed, ("kv_heads", kv_heads * size), bias),
            Linear("v_proj", embed, ("kv_heads", kv_heads * value), bias),
        ),
        output=Linear("o_proj", ("heads", heads * value), embed),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        value_dim=value,
        sinks=slides,
        rotary_dim=partial_rotary(Config({**config.data, "rope_parameters": None}), size, 0.334),
        extra=(Weight("sinks", (("heads", heads),)),) if slides else (),
    )


def _types(config: Config, layers: int) -> tuple[str, ...]:
    """`layer_types`, or `hybrid_layer_pattern` (1 where a layer slides), else five of six."""
    pattern = config.per_layer("hybrid_layer_pattern", layers, [])
    usual = [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(layers)]
    if pattern:
        usual = [SLIDING if flag else FULL for flag in pattern]
    return layer_types(config, layers, usual)


def read_mimo_v2(data: Mapping[str, Any]) -> Arch:
    """MiMo-V2-Flash (transformers 5.17 models/mimo_v2_flash)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    layers = config.size("num_hidden_layers", default=48)
    activation = config.text("hidden_act", "silu")
    ffn = config.size("intermediate_size", default=16384)
    moe = stacked_moe(
        hidden,
        config.size("n_routed_experts", default=256),
        config.size("num_experts_per_tok", default=8),
        config.size("moe_intermediate_size", default=2048),
        activation=activation,
        router_impl="float_sigmoid",
    )
    mlps: dict[bool, Mlp | Moe] = {True: gated_mlp(hidden, ffn, activation=activation), False: moe}
    types = _types(config, layers)
    usual = ["dense", *["sparse"] * (layers - 1)]
    freq = (
        config.per_layer("moe_layer_freq", layers, [])
        if isinstance(config.get("moe_layer_freq"), list)
        else []
    )
    if freq:
        usual = ["sparse" if flag else "dense" for flag in freq]
    dense = [word == "dense" for word in config.per_layer("mlp_layer_types", layers, usual)]
    by_pair = {
        (kind, flag): Layer(
            kind="dense" if flag else "moe",
            mixer=_attention(config, hidden, kind),
            mlp=mlps[flag],
            norms=pre_norms(hidden),
        )
        for kind, flag in set(zip(types, dense, strict=True))
    }
    stack = tuple(by_pair[pair] for pair in zip(types, dense, strict=True))
    return decoder(
        config,
        "mimo_v2_flash",
        hidden,
        stack,
        vocab=152576,
        max_seq_len=131072,
        tied=False,
        rotary_dim=0,
        buffers=(),
        trains=False,
        windows=typed_windows(types, config.size("sliding_window", default=128)),
    )


FAMILIES = {"mimo": read_mimo, "mimo_v2_flash": read_mimo_v2}
