"""Llama's near kin: families that differ from it by a bias, a norm, a window or a default.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Mlp, Norm, Weight
from .blocks import (
    FULL,
    SLIDING,
    head_counts,
    head_norms,
    layer_types,
    nullable,
    partial_rotary,
    same_windows,
    text,
    typed_windows,
)
from .config import Config
from .llama import decoder, gated_mlp, separate_attention
from .older import per_layer

Windows = tuple[int | None, ...]
PRE = (("pre", "input_layernorm"), ("pre_mlp", "post_attention_layernorm"))
POST = (("post", "post_attention_layernorm"), ("post_mlp", "post_feedforward_layernorm"))


class Kin(Struct, frozen=True, kw_only=True):
    """How a family differs; sizes are its defaults in transformers 5.17.

    A bias is named by the key that switches it on and that key's default; "" means none.
    """

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int | None
    vocab: int
    max_seq_len: int
    head_dim: int | None = None
    tied: bool = False
    bias: tuple[str, bool] = ("attention_bias", False)
    output_bias: tuple[str, bool] = ("attention_bias", False)
    mlp_bias: tuple[str, bool] = ("mlp_bias", False)
    gated: bool = True
    activation: str = "silu"
    qk_norms: tuple[str, ...] = ()
    norms: tuple[tuple[str, str], ...] = PRE
    norm_impl: str = "rms"
    rotary: float = 1.0
    windows: Callable[[Config, int], Windows] = lambda config, layers: ()
    mlp_extra: tuple[str, ...] = ()  # numbers that an activation learns


def _flag(config: Config, key: tuple[str, bool]) -> bool:
    return config.flag(key[0], default=key[1]) if key[0] else False


def _norm(kin: Kin, name: str, hidden: int) -> Norm:
    return Norm(name, ("embed", hidden), kin.norm_impl, bias=kin.norm_impl == "layer")


def _mlp(config: Config, kin: Kin, hidden: int) -> Mlp:
    ffn, bias = config.size("intermediate_size", default=kin.ffn), _flag(config, kin.mlp_bias)
    activation = text(config, "hidden_act", kin.activation)
    if kin.gated:
        return gated_mlp(hidden, ffn, bias=bias, activation=activation)
    embed, inner = ("embed", hidden), ("ffn", ffn)
    return Mlp(
        inputs=(Linear("up_proj", embed, inner, bias),),
        output=Linear("down_proj", inner, embed, bias),
        ffn=ffn,
        gated=False,
        activation=activation,
    )


def kin_layer(config: Config, kin: Kin, hidden: int, mlp: Any = None) -> Layer:
    """One layer."""
    counts = head_counts(
        config, hidden, heads=kin.heads, kv_heads=kin.kv_heads, head_dim=kin.head_dim
    )
    attention = separate_attention(
        hidden, *counts, bias=_flag(config, kin.bias), output_bias=_flag(config, kin.output_bias),
        norms=head_norms((kin.qk_norms[0], kin.qk_norms[1]), counts[2]) if kin.qk_norms else (),
        rotary_dim=partial_rotary(config, counts[2], kin.rotary),
        dropout=config.number("attention_dropout"),
    )  # fmt: skip
    return Layer(
        kind="dense" if mlp is None else "moe",
        mixer=attention,
        mlp=_mlp(config, kin, hidden) if mlp is None else mlp,
        norms=tuple((place, _norm(kin, name, hidden)) for place, name in kin.norms),
        extra=tuple(Weight(name, (("one", 1),)) for name in kin.mlp_extra),
    )


def read_kin(family: str, kin: Kin, data: Mapping[str, Any]) -> Arch:
    """The frame of Llama around such layers."""
    config = Config(data)
    hidden = config.size("hidden_size", default=kin.hidden)
    layer = kin_layer(config, kin, hidden)
    layers = config.size("num_hidden_layers", default=kin.layers)
    return kin_decoder(config, family, kin, hidden, (layer,) * layers)


def kin_decoder(
    config: Config, family: str, kin: Kin, hidden: int, layers: tuple[Layer, ...], **rest: Any
) -> Arch:
    """Embedding, stack, norm, head."""
    mixer: Any = layers[0].mixer
    return decoder(
        config, family, hidden, layers, vocab=kin.vocab, max_seq_len=kin.max_seq_len,
        tied=kin.tied, rotary_dim=mixer.rotary_dim, trains=False,
        **{"final_norm": _norm(kin, "model.norm", hidden),
           "windows": kin.windows(config, len(layers)), **rest},
    )  # fmt: skip


def smollm3_windows(config: Config, layers: int) -> Windows:
    """Layers slide only under `use_sliding_window`, and then those without rotary."""
    window = nullable(config, "sliding_window", None)
    if not config.flag("use_sliding_window", default=False):
        window = None
    every = config.size("no_rope_layer_interval", default=4)
    usual = [int((i + 1) % every != 0) for i in range(layers)]
    rotary = per_layer(config, "no_rope_layers", layers, usual)
    kinds = [FULL if window is None or rotary[i] else SLIDING for i in range(layers)]
    return typed_windows(layer_types(config, layers, kinds), window)


def exaone4_windows(config: Config, layers: int) -> Windows:
    """All but every `sliding_window_pattern`-th layer slide."""
    window = nullable(config, "sliding_window", 4096)
    every = config.size("sliding_window_pattern", default=4) if config.get(
        "sliding_window_pattern") != "LLLG" else 4  # fmt: skip
    kinds = [SLIDING if window and (i + 1) % every else FULL for i in range(layers)]
    return typed_windows(layer_types(config, layers, kinds), window)


def typed(default: int | None) -> Callable[[Config, int], Windows]:
    """`layer_types` and one window; every layer slides where there are no types."""

    def windows(config: Config, layers: int) -> Windows:
        window = nullable(config, "sliding_window", default)
        kinds = [FULL if window is None else SLIDING] * layers
        return typed_windows(layer_types(config, layers, kinds), window)

    return windows


def same(default: int | None) -> Callable[[Config, int], Windows]:
    """One window on every layer."""
    return lambda config, layers: same_windows(config, layers, default)


NONE = ("", False)
ALPHAS = ("mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n")
SIZES: dict[str, Any] = {"hidden": 4096, "layers": 32, "heads": 32}
KIN = {
    "smollm3": Kin(hidden=2048, ffn=11008, layers=36, heads=16, kv_heads=4, vocab=128256,
                   max_seq_len=32768, tied=True, windows=smollm3_windows),
    "seed_oss": Kin(hidden=4096, ffn=27648, layers=64, heads=80, kv_heads=8, head_dim=128,
                    vocab=155136, max_seq_len=524288, bias=("attention_bias", True),
                    output_bias=("attention_out_bias", False)),
    "hunyuan_v1_dense": Kin(**SIZES, ffn=11008, kv_heads=None, vocab=290943, max_seq_len=2048,
                            mlp_bias=NONE, qk_norms=("query_layernorm", "key_layernorm")),
    "exaone4": Kin(**SIZES, ffn=16384, kv_heads=32, vocab=102400, max_seq_len=2048, bias=NONE,
                   output_bias=NONE, mlp_bias=NONE, qk_norms=("q_norm", "k_norm"), norms=POST,
                   windows=exaone4_windows),
    "apertus": Kin(**SIZES, ffn=14336, kv_heads=None, vocab=131072, max_seq_len=65536,
                   mlp_bias=NONE, qk_norms=("q_norm", "k_norm"), gated=False, activation="xielu",
                   norms=(("pre", "attention_layernorm"), ("pre_mlp", "feedforward_layernorm")),
                   mlp_extra=ALPHAS),
    "arcee": Kin(hidden=2560, ffn=18432, layers=32, heads=32, kv_heads=None, vocab=32000,
                 max_seq_len=4096, gated=False, activation="relu2"),
    "nemotron": Kin(hidden=6144, ffn=24576, layers=32, heads=48, kv_heads=None, vocab=256000,
                    max_seq_len=4096, gated=False, activation="relu2", norm_impl="layer",
                    rotary=0.5),
    "jais2": Kin(hidden=3328, ffn=26624, layers=32, heads=26, kv_heads=None, vocab=150272,
                 max_seq_len=8192, head_dim=128, bias=("attention_bias", True),
                 output_bias=("attention_bias", True), mlp_bias=("mlp_bias", True), gated=False,
                 activation="relu2", norm_impl="layer"),
    "ernie4_5": Kin(hidden=1024, ffn=3072, layers=18, heads=16, kv_heads=2, head_dim=128,
                    vocab=103424, max_seq_len=131072, tied=True, bias=("use_bias", False),
                    output_bias=("use_bias", False), mlp_bias=("use_bias", False)),
    "ministral": Kin(**SIZES, ffn=14336, kv_heads=8, vocab=32000, max_seq_len=131072, bias=NONE,
                     output_bias=NONE, mlp_bias=NONE, windows=typed(4096)),
    "ministral3": Kin(hidden=4096, ffn=14336, layers=34, heads=32, kv_heads=8, head_dim=128,
                      vocab=131072, max_seq_len=262144, bias=NONE, output_bias=NONE,
                      mlp_bias=NONE, windows=same(None)),
}  # fmt: skip
FAMILIES = {name: partial(read_kin, name, kin) for name, kin in KIN.items()}
