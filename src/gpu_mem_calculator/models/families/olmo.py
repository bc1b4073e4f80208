"""OLMo 2 and 3 (norms after the branches) and OLMoE: all norm the whole query and key."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ..arch.blocks import Norm
from .attention import whole_norms
from .config import Config, Fields
from .frame import typed_rotary_buffer
from .llama import LLAMA
from .llama_like import ATTENTION_ONLY, Counts, LlamaLike, readers, row_counts
from .mlps import routed_moe
from .norms import POST, rms_product
from .windows import FULL, SLIDING, Windows, layer_types, typed_windows


def olmoe_attention(config: Config, counts: Counts) -> Fields:
    """OLMoE sizes its norms from hidden / heads, and clamps q, k and v under `clip_qkv`."""
    heads, kv_heads, _ = counts
    hidden = config.hidden(2048)
    q, k = ("heads", hidden), ("kv_heads", kv_heads * (hidden // heads))
    norms = (Norm("q_norm", q), Norm("k_norm", k))
    return {"norms": norms, "clipped": config.get("clip_qkv") is not None}


def olmo3_types(config: Config, layers: int) -> tuple[str, ...]:
    """`layer_types`, else three layers of four slide."""
    return layer_types(config, layers, [SLIDING if (i + 1) % 4 else FULL for i in range(layers)])


def olmo3_windows(config: Config, layers: int) -> Windows:
    """The window of each sliding layer."""
    return typed_windows(olmo3_types(config, layers), config.size("sliding_window", default=4096))


def olmo3_frame(config: Config, hidden: int) -> Fields:
    """OLMo 3 keeps one set of frequencies for each kind of layer it has."""
    size = row_counts(config, OLMO2, hidden)[2]
    types = olmo3_types(config, config.layers(OLMO2.layers))
    return {"buffers": typed_rotary_buffer(types, size)}


OLMO2 = replace(
    LLAMA,
    vocab=50304,
    biases=ATTENTION_ONLY,
    norm=rms_product,
    norms=POST,
    attention=partial(whole_norms, impl="rms_product"),
)
KEYS: Fields = {"ffn_key": "intermediate_size", "counts": ("num_experts", "num_local_experts")}
OLMOE_EXPERTS = partial(routed_moe, experts=64, top_k=8, ffn=2048, **KEYS)  # none is shared
ROWS = {
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, windows=olmo3_windows, frame=olmo3_frame),
    "olmoe": LlamaLike(
        *(2048, 11008, 16, 16, None, 50304, 4096), attention=olmoe_attention, experts=OLMOE_EXPERTS
    ),
}
FAMILIES = readers(ROWS)
