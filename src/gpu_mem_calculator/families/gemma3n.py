"""Gemma 3n and Gemma 4: an embedding for each layer, late layers that read earlier keys and values.

Parameters and cache of the text model; its activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Linear, Mlp, Moe, Norm, Weight
from .attention import head_counts, head_norms, separate_attention
from .config import MOST, Config, ConfigError
from .frame import decoder
from .gemma import GELU, NORM, sandwich_norms
from .mlps import gated_mlp, shared_mlp, stacked_moe
from .windows import FULL, SLIDING, layer_types, typed_windows


def _norm(name: str, size: int) -> tuple[Weight, ...]:
    return tuple(Norm(name, ("embed", size), NORM).weights())


def reading(attention: Attention) -> Attention:
    """The same attention on an earlier layer's keys and values: it has a query path alone."""
    return replace(attention, inputs=attention.inputs[:1], norms=attention.norms[:1], reuses=True)


def per_layer_gate(hidden: int, small: int) -> tuple[Weight, ...]:
    """A layer's own small input: gated in, projected back, normed."""
    embed, narrow = ("embed", hidden), ("per_layer", small)
    return (
        *Linear("per_layer_input_gate", embed, narrow).weights(),
        *Linear("per_layer_projection", narrow, embed).weights(),
        *_norm("post_per_layer_input_norm", hidden),
    )


def per_layer_tables(config: Config, hidden: int, layers: int, small: int) -> tuple[Weight, ...]:
    """One table holds every layer's small embedding; a projection makes them from the large one."""
    rows = config.size("vocab_size_per_layer_input", default=262144, most=MOST)
    wide = ("per_layer", layers * small)
    return (
        Weight("model.embed_tokens_per_layer.weight", (("vocab", rows), wide)),
        Weight("model.per_layer_model_projection.weight", (wide, ("embed", hidden))),
        Weight("model.per_layer_projection_norm.weight", (("per_layer", small),)),
    )


def shared_from(config: Config, layers: int, default: int) -> int:
    """The first layer that reads earlier keys and values; `layers` where none does."""
    shared = config.count("num_kv_shared_layers", default=default)
    if shared >= layers:
        raise ConfigError(f"model.config.num_kv_shared_layers={shared} must be below {layers}")
    return layers - shared


def _altup(hidden: int, inputs: int) -> Iterator[Weight]:
    """Gemma3nTextAltUp: several residual streams, one of them active."""
    small, embed = ("altup", inputs), ("embed", hidden)
    yield Weight("altup.correct_output_scale", (embed,))
    yield Weight("altup.correction_coefs.weight", (small, small))
    yield Weight("altup.prediction_coefs.weight", (("altup", inputs**2), small))
    yield Weight("altup.modality_router.weight", (small, embed))
    yield from _norm("altup.router_norm", hidden)


def _laurel(hidden: int, rank: int) -> Iterator[Weight]:
    """Gemma3nTextLaurelBlock: a low-rank residual."""
    embed, low = ("embed", hidden), ("laurel", rank)
    yield Weight("laurel.linear_left.weight", (low, embed))
    yield Weight("laurel.linear_right.weight", (embed, low))
    yield from _norm("laurel.post_laurel_norm", hidden)


def _gemma_attention(config: Config, hidden: int, counts: tuple[int, int, int]) -> Attention:
    bias = config.flag("attention_bias", default=False)
    return separate_attention(
        hidden,
        *counts,
        bias=bias,
        output_bias=bias,
        rotary_dim=counts[2],
        norms=head_norms(("q_norm", "k_norm"), counts[2], NORM),
    )


def _widths(config: Config, layers: int, default: int) -> list[int]:
    """`intermediate_size`: one for all, or one a layer."""
    if not isinstance(config.get("intermediate_size"), list):
        return [config.size("intermediate_size", default=default)] * layers
    sizes = config.per_layer("intermediate_size", layers, [])
    return [Config({"intermediate_size": one}).size("intermediate_size") for one in sizes]


def read_gemma3n_text(data: Mapping[str, Any]) -> Arch:
    """Gemma 3n's text model (transformers 5.17 models/gemma3n)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2048)
    layers = config.size("num_hidden_layers", default=35)
    inputs = config.size("altup_num_inputs", default=4, most=1000)
    small = config.size("hidden_size_per_layer_input", default=256)
    counts = head_counts(config, hidden, heads=8, kv_heads=2, head_dim=256)
    early, late = (attention := _gemma_attention(config, hidden, counts)), reading(attention)
    first = shared_from(config, layers, 15 if layers > 15 else 0)
    activation = config.text("hidden_activation", GELU)
    extra = (
        *_altup(hidden, inputs),
        *_laurel(hidden, config.size("laurel_rank", default=64)),
        *per_layer_gate(hidden, small),
    )
    stack = tuple(
        Layer(
            kind="dense",
            mixer=early if i < first else late,
            norms=sandwich_norms(hidden),
            mlp=gated_mlp(hidden, ffn, activation=activation),
            extra=extra,
        )
        for i, ffn in enumerate(_widths(config, layers, 16384))
    )
    types = layer_types(config, layers, [SLIDING if (i + 1) % 5 else FULL for i in range(layers)])
    vocab = config.size("vocab_size", default=262400)
    square = (("embed", hidden), ("embed", hidden))
    sides = ("altup_projections", "altup_unembed_projections")
    return decoder(
        config,
        "gemma3n",
        hidden,
        stack,
        vocab=vocab,
        max_seq_len=32768,
        tied=True,
        rotary_dim=counts[2],
        norm_impl=NORM,
        buffers=(),
        trains=False,
        windows=typed_windows(types, config.size("sliding_window", default=512)),
        logit_softcap=config.optional_number("final_logit_softcapping", 30.0),
        embedding=(
            Weight("model.embed_tokens.weight", (("vocab", vocab), ("embed", hidden))),
            *per_layer_tables(config, hidden, layers, small),
            *(
                Weight(f"model.{side}.{i}.weight", square)
                for side in sides
                for i in range(inputs - 1)
            ),
        ),
    )


def _gemma4_attention(config: Config, hidden: int, kind: str) -> Attention:
    """Full layers have larger heads, perhaps fewer, and perhaps values that are the raw keys."""
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=8, kv_heads=4, head_dim=256)
    if kind != FULL:
        return _gemma_attention(config, hidden, (heads, kv_heads, head_dim))
    same = config.flag("attention_k_eq_v", default=False)
    if same:
        kv_heads = config.size("num_global_key_value_heads", default=kv_heads)
        config.divided(heads, "global key-value heads", kv_heads)
    head_dim = config.size("global_head_dim", default=512)
    attention = _gemma_attention(config, hidden, (heads, kv_heads, head_dim))
    return replace(attention, inputs=attention.inputs[:2]) if same else attention


def _gemma4_mlp(config: Config, hidden: int, *, wide: bool) -> tuple[Mlp | Moe, str]:
    """A dense MLP; with experts beside it where `enable_moe_block` says so."""
    activation = config.text("hidden_activation", GELU)
    ffn = config.size("intermediate_size", default=9216) * (1 + wide)
    if not config.flag("enable_moe_block", default=False):
        return gated_mlp(hidden, ffn, activation=activation), "mlp"
    experts = config.size("num_experts")
    plain = stacked_moe(
        hidden,
        experts,
        config.size("top_k_experts"),
        config.size("moe_intermediate_size"),
        router="router.proj",
        activation=activation,
        shared=shared_mlp("mlp", hidden, ffn, activation=activation),
    )
    scales = (
        Weight("router.scale", (("embed", hidden),)),
        Weight("router.per_expert_scale", (("expert", experts),)),
    )
    return replace(plain, router=(*plain.router, *scales)), ""


def _gemma4_layer(config: Config, hidden: int, kind: str, small: int, *, late: bool) -> Layer:
    attention = _gemma4_attention(config, hidden, kind)
    wide = late and config.flag("use_double_wide_mlp", default=False)
    mlp, name = _gemma4_mlp(config, hidden, wide=wide)
    more = (
        (
            "post_feedforward_layernorm_1",
            "post_feedforward_layernorm_2",
            "pre_feedforward_layernorm_2",
        )
        if isinstance(mlp, Moe)
        else ()
    )
    return Layer(
        kind="moe" if isinstance(mlp, Moe) else "dense",
        mixer=reading(attention) if late else attention,
        mlp=mlp,
        mlp_name=name,
        norms=sandwich_norms(hidden),
        extra=(
            *(per_layer_gate(hidden, small) if small else ()),
            *(weight for one in more for weight in _norm(one, hidden)),
        ),
    )


def gemma4_types(config: Config, layers: int) -> tuple[str, ...]:
    """Five of six slide; the last layer never does."""
    usual = [SLIDING if (i + 1) % 6 else FULL for i in range(layers)]
    return (*layer_types(config, layers, usual)[:-1], FULL)


def read_gemma4_text(data: Mapping[str, Any]) -> Arch:
    """Gemma 4's text model (transformers 5.17 models/gemma4)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2304)
    layers = config.size("num_hidden_layers", default=30)
    small = config.count("hidden_size_per_layer_input", default=256)
    first, types = shared_from(config, layers, 0), gemma4_types(config, layers)
    by_kind = {
        (kind, late): _gemma4_layer(config, hidden, kind, small, late=late)
        for kind, late in {(kind, i >= first) for i, kind in enumerate(types)}
    }
    window = config.size("sliding_window", default=512)
    if config.get("use_bidirectional_attention") == "all":
        window = window // 2 + 1
    vocab = config.size("vocab_size", default=262144)
    tables = per_layer_tables(config, hidden, layers, small) if small else ()
    return decoder(
        config,
        "gemma4",
        hidden,
        tuple(by_kind[kind, i >= first] for i, kind in enumerate(types)),
        vocab=vocab,
        max_seq_len=131072,
        tied=True,
        rotary_dim=0,
        norm_impl=NORM,
        buffers=(),
        trains=False,
        windows=typed_windows(types, window),
        logit_softcap=config.optional_number("final_logit_softcapping", None),
        embedding=(
            Weight("model.embed_tokens.weight", (("vocab", vocab), ("embed", hidden))),
            *tables,
        ),
    )


FAMILIES = {"gemma3n_text": read_gemma3n_text, "gemma4_text": read_gemma4_text}
