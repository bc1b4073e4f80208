"""Gemma 1 to 3: fp32 norms with (1 + weight), tied embeddings, sandwich norms from 2 on."""

from __future__ import annotations

from msgspec.structs import replace

from ..model.arch import Buffer
from .attention import head_counts
from .config import Config
from .frame import rotary_buffer, typed_rotary_buffer
from .llama import ATTENTION_ONLY
from .llama_like import Counts, Fields, LlamaLike, Windows, readers
from .norms import Norms, norms_at, rms_float
from .windows import FULL, SLIDING, layer_types, typed, typed_windows

NORM = "rms_float"
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


def _head_dim(config: Config, row: LlamaLike, hidden: int) -> int:
    return head_counts(config, hidden, heads=row.heads, kv_heads=row.kv_heads, head_dim=256)[2]


def gemma_frame(config: Config, hidden: int) -> Fields:
    """Gemma multiplies its embeddings by a number that is a buffer."""
    return {"buffers": EMBED_SCALE + rotary_buffer(_head_dim(config, GEMMA, hidden))}


def gemma2_frame(config: Config, hidden: int) -> Fields:
    """Gemma 2 caps its logits."""
    return {
        "buffers": EMBED_SCALE + rotary_buffer(_head_dim(config, GEMMA2, hidden)),
        "logit_softcap": config.optional_number("final_logit_softcapping", 30.0),
    }


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
    both = config.flag("use_bidirectional_attention", default=False)
    window = window // 2 + 1 if window and both else window
    return typed_windows(gemma3_types(config, layers), window)


def gemma3_frame(config: Config, hidden: int) -> Fields:
    """Gemma 3 keeps one set of frequencies for each kind of layer it has."""
    types = gemma3_types(config, config.size("num_hidden_layers", default=GEMMA3.layers))
    return {
        "buffers": EMBED_SCALE + typed_rotary_buffer(types, _head_dim(config, GEMMA3, hidden)),
        "logit_softcap": config.optional_number("final_logit_softcapping", None),
    }


GEMMA = LlamaLike(
    hidden=3072,
    ffn=24576,
    layers=28,
    heads=16,
    kv_heads=16,
    head_dim=256,
    vocab=256000,
    max_seq_len=8192,
    tied=True,
    biases=ATTENTION_ONLY,
    activation=GELU,
    norm=rms_float,
    frame=gemma_frame,
)
GEMMA2 = replace(
    GEMMA,
    hidden=2304,
    ffn=9216,
    layers=26,
    heads=8,
    kv_heads=4,
    norms=SANDWICH,
    activation_key="hidden_activation",
    attention=gemma2_attention,
    windows=typed(4096, lambda i: i % 2 == 0),
    frame=gemma2_frame,
)
# `attn_logit_softcapping` is in Gemma 3's config but Gemma3Attention.forward does not pass it on.
GEMMA3 = replace(
    GEMMA2,
    vocab=262208,
    max_seq_len=131072,
    qk_norms=("q_norm", "k_norm"),
    attention=lambda config, counts: {},
    windows=gemma3_windows,
    frame=gemma3_frame,
)
FAMILIES = readers({"gemma": GEMMA, "gemma2": GEMMA2, "gemma3_text": GEMMA3})
