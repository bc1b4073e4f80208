"""Gemma 3n and Gemma 4: an embedding for each layer, late layers that read earlier keys and values.

Parameters and cache of the text model; its activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Linear, Mlp, Moe, Norm, Weight
from .attention import head_counts, head_norms, separate_attention
from .config import MOST, Config, ConfigError, Fields
from .frame import decoder, decoder_layer, stacked
from .gemma import GELU, NORM, sandwich_norms
from .mlps import gated_mlp, stacked_moe
from .norms import rms_float
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
    bias = config.flag("attention_bias")
    norms = head_norms(("q_norm", "k_norm"), counts[2], NORM)
    return separate_attention(hidden, *counts, bias=bias, rotary_dim=counts[2], norms=norms)


def _widths(config: Config, layers: int, default: int) -> list[int]:
    """`intermediate_size`: one for all, or one a layer."""
    if not isinstance(config.get("intermediate_size"), list):
        return [config.ffn(default)] * layers
    sizes = config.per_layer("intermediate_size", layers, [])
    return [Config({"intermediate_size": one}).size("intermediate_size") for one in sizes]


def _words(config: Config, hidden: int, default: int, more: Iterable[Weight]) -> Fields:
    """The vocabulary, the table of words, and the tables beside it."""
    vocab = config.vocab(default)
    words = Weight("model.embed_tokens.weight", (("vocab", vocab), ("embed", hidden)))
    return {"vocab": vocab, "embedding": (words, *more)}


def read_gemma3n_text(config: Config) -> Arch:
    """Gemma 3n's text model (transformers 5.17 models/gemma3n)."""
    hidden, layers = config.hidden(2048), config.layers(35)
    inputs = config.size("altup_num_inputs", default=4, most=1000)
    small = config.size("hidden_size_per_layer_input", default=256)
    counts = head_counts(config, hidden, heads=8, kv_heads=2, head_dim=256)
    attention = _gemma_attention(config, hidden, counts)
    first = shared_from(config, layers, 15 if layers > 15 else 0)
    activation = config.text("hidden_activation", GELU)
    rank, norms = config.size("laurel_rank", default=64), sandwich_norms(hidden)
    extra = (*_altup(hidden, inputs), *_laurel(hidden, rank), *per_layer_gate(hidden, small))

    def layer(index: int, ffn: int) -> Layer:
        mixer = attention if index < first else reading(attention)
        mlp = gated_mlp(hidden, ffn, activation=activation)
        return decoder_layer(hidden, mixer, mlp, norms=norms, extra=extra)

    stack = tuple(layer(i, ffn) for i, ffn in enumerate(_widths(config, layers, 16384)))
    types = layer_types(config, layers, [SLIDING if (i + 1) % 5 else FULL for i in range(layers)])
    square = (("embed", hidden), ("embed", hidden))
    sides = ("altup_projections", "altup_unembed_projections")
    projections = (f"model.{side}.{i}" for side in sides for i in range(inputs - 1))
    tables = per_layer_tables(config, hidden, layers, small)
    more = (*tables, *(Weight(f"{name}.weight", square) for name in projections))
    return decoder(
        config,
        "gemma3n",
        hidden,
        stack,
        max_seq_len=32768,
        tied=True,
        final_norm=rms_float("model.norm", hidden),
        trains=False,
        windows=typed_windows(types, config.size("sliding_window", default=512)),
        logit_softcap=config.optional_number("final_logit_softcapping", 30.0),
        **_words(config, hidden, 262400, more),
    )


def _gemma4_attention(config: Config, hidden: int, kind: str) -> Attention:
    """Full layers have larger heads, perhaps fewer, and perhaps values that are the raw keys."""
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=8, kv_heads=4, head_dim=256)
    if kind != FULL:
        return _gemma_attention(config, hidden, (heads, kv_heads, head_dim))
    same = config.flag("attention_k_eq_v")
    if same:
        kv_heads = config.size("num_global_key_value_heads", default=kv_heads)
        config.divided(heads, "global key-value heads", kv_heads)
    head_dim = config.size("global_head_dim", default=512)
    attention = _gemma_attention(config, hidden, (heads, kv_heads, head_dim))
    return replace(attention, inputs=attention.inputs[:2]) if same else attention


def _gemma4_mlp(config: Config, hidden: int, *, wide: bool) -> tuple[Mlp | Moe, str]:
    """A dense MLP; with experts beside it where `enable_moe_block` says so."""
    activation = config.text("hidden_activation", GELU)
    ffn = config.ffn(9216) * (1 + wide)
    if not config.flag("enable_moe_block"):
        return gated_mlp(hidden, ffn, activation=activation), "mlp"
    experts, top_k = config.size("num_experts"), config.size("top_k_experts")
    shared = gated_mlp(hidden, ffn, prefix="mlp.", activation=activation)
    fields: Fields = {"router": "router.proj", "activation": activation, "shared": shared}
    width = config.size("moe_intermediate_size")
    plain = stacked_moe(hidden, experts, top_k, width, **fields)
    scales = {"scale": ("embed", hidden), "per_expert_scale": ("expert", experts)}
    more = (Weight(f"router.{name}", (dim,)) for name, dim in scales.items())
    return replace(plain, router=(*plain.router, *more)), ""


def _gemma4_layer(config: Config, hidden: int, kind: str, small: int, *, late: bool) -> Layer:
    attention = _gemma4_attention(config, hidden, kind)
    wide = late and config.flag("use_double_wide_mlp")
    mlp, name = _gemma4_mlp(config, hidden, wide=wide)
    norms: tuple[str, ...] = ()
    if isinstance(mlp, Moe):
        norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
        norms = (*norms, "pre_feedforward_layernorm_2")
    more = (weight for norm in norms for weight in _norm(norm, hidden))
    return decoder_layer(
        hidden,
        reading(attention) if late else attention,
        mlp,
        mlp_name=name,
        norms=sandwich_norms(hidden),
        extra=(*(per_layer_gate(hidden, small) if small else ()), *more),
    )


def gemma4_types(config: Config, layers: int) -> tuple[str, ...]:
    """Five of six slide; the last layer never does."""
    usual = [SLIDING if (i + 1) % 6 else FULL for i in range(layers)]
    return (*layer_types(config, layers, usual)[:-1], FULL)


def read_gemma4_text(config: Config) -> Arch:
    """Gemma 4's text model (transformers 5.17 models/gemma4)."""
    hidden, layers = config.hidden(2304), config.layers(30)
    small = config.count("hidden_size_per_layer_input", default=256)
    first, types = shared_from(config, layers, 0), gemma4_types(config, layers)

    def layer(pair: tuple[str, bool]) -> Layer:
        return _gemma4_layer(config, hidden, pair[0], small, late=pair[1])

    window = config.size("sliding_window", default=512)
    if config.get("use_bidirectional_attention") == "all":
        window = window // 2 + 1
    tables = per_layer_tables(config, hidden, layers, small) if small else ()
    return decoder(
        config,
        "gemma4",
        hidden,
        stacked(((kind, i >= first) for i, kind in enumerate(types)), layer),
        max_seq_len=131072,
        tied=True,
        final_norm=rms_float("model.norm", hidden),
        trains=False,
        windows=typed_windows(types, window),
        logit_softcap=config.optional_number("final_logit_softcapping", None),
        **_words(config, hidden, 262144, tables),
    )


FAMILIES = {"gemma3n_text": read_gemma3n_text, "gemma4_text": read_gemma4_text}
