"""Gemma 1 to 3: fp32 norms with (1 + weight), tied embeddings, sandwich norms from 2 on."""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.arch import Buffer
from ..arch.blocks import NormImpl
from .config import Config, Fields
from .frame import rotary_buffer, typed_rotary_buffer
from .llama import QK_NORMS
from .llama_like import ATTENTION_ONLY, Counts, LlamaLike, no_fields, readers, row_counts
from .norms import Norms, norms_at, rms_float
from .windows import FULL, SLIDING, Windows, layer_types, typed, typed_windows

NORM: NormImpl = "rms_float"
GELU = "gelu_pytorch_tanh"
EMBED_SCALE = (Buffer("model.embed_tokens.embed_scale", ()),)
SANDWICH = (
    ("pre", "input_layernorm"),
    ("post", "post_attention_layernorm"),
    ("pre_mlp", "pre_feedforward_layernorm"),
    ("post_mlp", "post_feedforward_layernorm"),
)


def sandwich_norms(hidden: int) -> Norms:
    """Gemma 2's four norms, before and after each branch."""
    return norms_at(SANDWICH, hidden, rms_float)


def _gemma_buffers(config: Config, row: LlamaLike, hidden: int) -> tuple[Buffer, ...]:
    """Gemma multiplies its embeddings by a number that is a buffer."""
    return EMBED_SCALE + rotary_buffer(row_counts(config, row, hidden)[2])


def gemma_frame(config: Config, hidden: int) -> Fields:
    """The buffers."""
    return {"buffers": _gemma_buffers(config, GEMMA, hidden)}


def gemma2_frame(config: Config, hidden: int) -> Fields:
    """Gemma 2 caps its logits."""
    cap = config.optional_number("final_logit_softcapping", 30.0)
    return {"buffers": _gemma_buffers(config, GEMMA2, hidden), "logit_softcap": cap}


def gemma2_attention(config: Config, counts: Counts) -> Fields:
    """Gemma 2 caps its attention scores."""
    return {"softcap": config.optional_number("attn_logit_softcapping", 50.0)}


def gemma3_types(config: Config, layers: int) -> tuple[str, ...]:
    """`layer_types`, else five layers of six slide."""
    period = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    usual = [SLIDING if (i + 1) % period else FULL for i in range(layers)]
    return layer_types(config, layers, usual)


def gemma3_windows(config: Config, layers: int) -> Windows:
    """`sliding_window`; half of it to each side where attention is bidirectional."""
    window = config.nullable("sliding_window", 4096)
    both = config.flag("use_bidirectional_attention")
    window = window // 2 + 1 if window and both else window
    return typed_windows(gemma3_types(config, layers), window)


def gemma3_frame(config: Config, hidden: int) -> Fields:
    """Gemma 3 keeps one set of frequencies for each kind of layer it has."""
    types = gemma3_types(config, config.layers(GEMMA3.layers))
    rotary = typed_rotary_buffer(types, row_counts(config, GEMMA3, hidden)[2])
    cap = config.optional_number("final_logit_softcapping", None)
    return {"buffers": EMBED_SCALE + rotary, "logit_softcap": cap}


GEMMA = LlamaLike(
    *(3072, 24576, 28, 16, 16, 256000, 8192),
    head_dim=256,
    tied=True,
    biases=ATTENTION_ONLY,
    activation=GELU,
    norm=rms_float,
    frame=gemma_frame,
)
GEMMA2 = LlamaLike(
    *(2304, 9216, 26, 8, 4, 256000, 8192),
    head_dim=256,
    tied=True,
    biases=ATTENTION_ONLY,
    activation=GELU,
    activation_key="hidden_activation",
    norm=rms_float,
    norms=SANDWICH,
    attention=gemma2_attention,
    windows=typed(4096, lambda i: i % 2 == 0),
    frame=gemma2_frame,
)
# `attn_logit_softcapping` is in Gemma 3's config but Gemma3Attention.forward does not pass it on.
GEMMA3 = replace(
    GEMMA2,
    vocab=262208,
    max_seq_len=131072,
    qk_norms=QK_NORMS,
    attention=no_fields,
    windows=gemma3_windows,
    frame=gemma3_frame,
)
FAMILIES = readers({"gemma": GEMMA, "gemma2": GEMMA2, "gemma3_text": GEMMA3})
