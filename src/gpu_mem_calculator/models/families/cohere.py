"""Command R and Command R7B: parallel branches after one layer norm written out in fp32."""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.blocks import Norm
from .config import Config, Fields
from .llama_like import ALWAYS, ATTENTION_ONLY, Counts, LlamaLike, no_fields, readers
from .norms import layer_float
from .windows import Windows, patterned


def cohere_attention(config: Config, counts: Counts) -> Fields:
    """`use_qk_norm`: a norm over each head of q and k, with a weight for each head."""
    if not config.flag("use_qk_norm"):
        return {}
    heads, kv_heads, size = counts
    rows = {"q_norm": ("heads", heads), "k_norm": ("kv_heads", kv_heads)}
    norms = (Norm(n, ("head_dim", size), "layer_float", lead=(row,)) for n, row in rows.items())
    return {"norms": tuple(norms)}


def cohere2_windows(config: Config, layers: int) -> Windows:
    """All but every `sliding_window_pattern`-th layer slide."""
    every = config.size("sliding_window_pattern", default=4)
    window = config.nullable("sliding_window", 4096)
    return patterned(config, layers, window, lambda i: (i + 1) % every != 0)


def cohere2_rotates(config: Config, windows: Windows, layers: int) -> list[bool]:
    """Rotary embedding in the layers that slide, and in no other."""
    return [window is not None for window in windows or (None,) * layers]


COHERE = LlamaLike(
    *(8192, 22528, 40, 64, None, 256000, 8192),
    tied=True,
    biases=ATTENTION_ONLY,
    norm=layer_float,
    rotary_impl="float",
    parallel=ALWAYS,
    attention=cohere_attention,
    frame=lambda config, _: {"logit_scale": config.number("logit_scale", default=0.0625)},
)
COHERE2 = replace(COHERE, attention=no_fields, windows=cohere2_windows, rotates=cohere2_rotates)
FAMILIES = readers({"cohere": COHERE, "cohere2": COHERE2})
