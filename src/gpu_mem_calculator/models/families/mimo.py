"""MiMo: 7B is Qwen2 with a prediction module, V2-Flash mixes windows and sinks.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Linear, Weight
from .attention import head_counts, partial_rotary, separate_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer, stacked
from .llama_like import read_row
from .mlps import gated_mlp, routed_moe
from .qwen import QWEN2
from .windows import FULL, SLIDING, layer_types, typed_windows


def read_mimo(config: Config) -> Arch:
    """MiMo-7B (modeling_mimo.py of XiaomiMiMo/MiMo-7B-Base): the layers are Qwen2's.

    A prediction module is one more layer, three norms and a projection from 2 x hidden.
    """
    counts = {"num_key_value_heads": 8, "num_hidden_layers": 36}
    defaults = {**counts, "intermediate_size": 11008, "vocab_size": 151680}
    arch = read_row("qwen2", QWEN2, config.with_defaults(defaults))
    modules = config.count("num_nextn_predict_layers")
    parameters = arch.layers[0].num_parameters + 3 * arch.hidden + 2 * arch.hidden**2
    return replace(arch, family="mimo", mtp_parameters=modules * parameters, trains=False)


def _attention(config: Config, hidden: int, kind: str) -> Attention:
    """Sliding layers have another number of key-value heads, and sinks."""
    slides = kind == SLIDING
    sizes: Fields = {}
    for name in ("num_attention_heads", "head_dim", "num_key_value_heads", "v_head_dim"):
        # what is not said of sliding layers is as in the full ones, but for the heads of k and v
        names = (f"swa_{name}", name) if slides else (name,)
        sizes[name] = config.get(*(names[:1] if name == "num_key_value_heads" else names))
    plain = Config({name: size for name, size in sizes.items() if size is not None})
    kv_heads = 8 if slides else 4
    heads, kv_heads, size = head_counts(plain, hidden, heads=64, kv_heads=kv_heads, head_dim=192)
    value = plain.size("v_head_dim", default=128)
    embed, bias = ("embed", hidden), config.flag("attention_bias")
    attention = separate_attention(
        hidden,
        heads,
        kv_heads,
        size,
        bias=bias,
        value_dim=value,
        sinks=slides,
        rotary_dim=partial_rotary(Config({**config.data, "rope_parameters": None}), size, 0.334),
        extra=(Weight("sinks", (("heads", heads),)),) if slides else (),
    )
    values = Linear("v_proj", embed, ("kv_heads", kv_heads * value), bias)
    output = Linear("o_proj", ("heads", heads * value), embed)
    return replace(attention, inputs=(*attention.inputs[:2], values), output=output)


def _types(config: Config, layers: int) -> tuple[str, ...]:
    """`layer_types`, or `hybrid_layer_pattern` (1 where a layer slides), else five of six."""
    pattern = config.per_layer("hybrid_layer_pattern", layers, [])
    usual = [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(layers)]
    if pattern:
        usual = [SLIDING if flag else FULL for flag in pattern]
    return layer_types(config, layers, usual)


def _dense(config: Config, layers: int) -> list[bool]:
    """`mlp_layer_types`, or `moe_layer_freq` (1 where a layer has experts), else the first."""
    usual = ["dense", *["sparse"] * (layers - 1)]
    if isinstance(config.get("moe_layer_freq"), list):
        flags = config.per_layer("moe_layer_freq", layers, [])
        usual = ["sparse" if flag else "dense" for flag in flags]
    return [word == "dense" for word in config.per_layer("mlp_layer_types", layers, usual)]


def read_mimo_v2(config: Config) -> Arch:
    """MiMo-V2-Flash (transformers 5.17 models/mimo_v2_flash)."""
    hidden, layers = config.hidden(4096), config.layers(48)
    fields: Fields = {"counts": ("n_routed_experts",), "router_impl": "float_sigmoid"}
    moe = routed_moe(config, hidden, experts=256, top_k=8, ffn=2048, **fields)
    mlp = gated_mlp(hidden, config.ffn(16384), activation=config.activation())
    types = _types(config, layers)

    def layer(pair: tuple[str, bool]) -> Layer:
        kind, dense = pair
        return decoder_layer(hidden, _attention(config, hidden, kind), mlp if dense else moe)

    stack = stacked(zip(types, _dense(config, layers), strict=True), layer)
    windows = typed_windows(types, config.size("sliding_window", default=128))
    sizes: Fields = {"vocab": 152576, "max_seq_len": 131072, "trains": False}
    return decoder(config, "mimo_v2_flash", hidden, stack, **sizes, windows=windows)


FAMILIES = {"mimo": read_mimo, "mimo_v2_flash": read_mimo_v2}
