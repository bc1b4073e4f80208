"""Gemma 1 to 3: fp32 norms with (1 + weight), tied embeddings, sandwich norms from 2 on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Attention, Norm
from .blocks import (
    FULL,
    SLIDING,
    head_counts,
    head_norms,
    layer_types,
    nullable,
    optional_number,
    text,
    typed_windows,
)
from .config import Config
from .llama import decoder, gated_mlp, pre_norms, rotary_buffer, separate_attention

NORM = "rms_float"
GELU = "gelu_pytorch_tanh"
EMBED_SCALE = (Buffer("model.embed_tokens.embed_scale", ()),)


def _attention(
    config: Config, hidden: int, *, heads: int, kv_heads: int, normed: bool = False, **rest: Any
) -> Attention:
    """Heads of 256, one switch for all four biases."""
    heads, kv_heads, head_dim = head_counts(
        config, hidden, heads=heads, kv_heads=kv_heads, head_dim=256
    )
    bias = config.flag("attention_bias", default=False)
    return separate_attention(
        hidden, heads, kv_heads, head_dim, bias=bias, output_bias=bias,
        rotary_dim=head_dim, dropout=config.number("attention_dropout"),
        norms=head_norms(("q_norm", "k_norm"), head_dim, NORM) if normed else (), **rest,
    )  # fmt: skip


def sandwich_norms(hidden: int) -> tuple[tuple[str, Norm], ...]:
    """Gemma 2's four norms, before and after each branch."""
    places = {
        "pre": "input_layernorm",
        "post": "post_attention_layernorm",
        "pre_mlp": "pre_feedforward_layernorm",
        "post_mlp": "post_feedforward_layernorm",
    }
    return tuple((place, Norm(name, ("embed", hidden), NORM)) for place, name in places.items())


def read_gemma(data: Mapping[str, Any]) -> Arch:
    """Gemma 1 (transformers 5.17 models/gemma)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=3072)
    attention = _attention(config, hidden, heads=16, kv_heads=16)
    ffn = config.size("intermediate_size", default=24576)
    layer = Layer(
        kind="dense",
        mixer=attention,
        mlp=gated_mlp(hidden, ffn, activation=text(config, "hidden_act", GELU)),
        norms=pre_norms(hidden, NORM),
    )
    return decoder(
        config, "gemma", hidden, (layer,) * config.size("num_hidden_layers", default=28),
        vocab=256000, max_seq_len=8192, tied=True, rotary_dim=attention.head_dim, norm_impl=NORM,
        buffers=EMBED_SCALE + rotary_buffer(attention.head_dim),
    )  # fmt: skip


def _sandwich_layer(config: Config, hidden: int, attention: Attention) -> Layer:
    """A layer of Gemma 2 or 3."""
    ffn = config.size("intermediate_size", default=9216)
    return Layer(
        kind="dense",
        mixer=attention,
        mlp=gated_mlp(hidden, ffn, activation=text(config, "hidden_activation", GELU)),
        norms=sandwich_norms(hidden),
    )


def read_gemma2(data: Mapping[str, Any]) -> Arch:
    """Gemma 2 (transformers 5.17 models/gemma2): every second layer slides, soft-capped logits."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2304)
    attention = _attention(
        config, hidden, heads=8, kv_heads=4,
        softcap=optional_number(config, "attn_logit_softcapping", 50.0),
    )  # fmt: skip
    num_layers = config.size("num_hidden_layers", default=26)
    pattern = [FULL if i % 2 else SLIDING for i in range(num_layers)]
    types = layer_types(config, num_layers, pattern)
    return decoder(
        config, "gemma2", hidden, (_sandwich_layer(config, hidden, attention),) * num_layers,
        vocab=256000, max_seq_len=8192, tied=True, rotary_dim=attention.head_dim, norm_impl=NORM,
        buffers=EMBED_SCALE + rotary_buffer(attention.head_dim),
        windows=typed_windows(types, nullable(config, "sliding_window", 4096)),
        logit_softcap=optional_number(config, "final_logit_softcapping", 30.0),
    )  # fmt: skip


def _typed_rotary(types: tuple[str, ...], head_dim: int) -> tuple[Buffer, ...]:
    """Gemma 3 keeps one set of frequencies for each kind of layer it has."""
    return tuple(
        Buffer(f"model.rotary_emb.{kind}_{name}", (head_dim // 2,))
        for kind in sorted(set(types))
        for name in ("inv_freq", "original_inv_freq")
    )


def _gemma3_window(config: Config) -> int | None:
    """`sliding_window`; half of it to each side where attention is bidirectional."""
    window = nullable(config, "sliding_window", 4096)
    both = config.flag("use_bidirectional_attention", default=False)
    return window // 2 + 1 if window and both else window


def read_gemma3_text(data: Mapping[str, Any]) -> Arch:
    """Gemma 3's text model (transformers 5.17 models/gemma3): five layers of six slide.

    `attn_logit_softcapping` is in the config but Gemma3Attention.forward does not pass it on.
    """
    config = Config(data)
    hidden = config.size("hidden_size", default=2304)
    attention = _attention(config, hidden, heads=8, kv_heads=4, normed=True)
    num_layers = config.size("num_hidden_layers", default=26)
    period = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    pattern = [SLIDING if (i + 1) % period else FULL for i in range(num_layers)]
    types = layer_types(config, num_layers, pattern)
    return decoder(
        config, "gemma3_text", hidden, (_sandwich_layer(config, hidden, attention),) * num_layers,
        vocab=262208, max_seq_len=131072, tied=True, rotary_dim=attention.head_dim, norm_impl=NORM,
        buffers=EMBED_SCALE + _typed_rotary(types, attention.head_dim),
        windows=typed_windows(types, _gemma3_window(config)),
        logit_softcap=optional_number(config, "final_logit_softcapping", None),
    )  # fmt: skip


FAMILIES = {
    "gemma": read_gemma,
    "gemma2": read_gemma2,
    "gemma3_text": read_gemma3_text,
}
