"""OLMo 2 and 3 (norms after the branches) and OLMoE: all norm the whole query and key."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from ..model.blocks import Moe, Norm
from .attention import whole_norms
from .config import Config
from .llama import ATTENTION_ONLY, LLAMA
from .llama_like import Counts, Fields, readers
from .mlps import routed_moe
from .norms import POST, rms_float
from .windows import typed


def olmoe_attention(config: Config, counts: Counts) -> Fields:
    """OLMoE sizes its norms from hidden / heads, and clamps q, k and v under `clip_qkv`."""
    heads, kv_heads, _ = counts
    hidden = config.size("hidden_size", default=2048)
    q, k = ("heads", hidden), ("kv_heads", kv_heads * (hidden // heads))
    return {
        "norms": (Norm("q_norm", q), Norm("k_norm", k)),
        "clipped": config.get("clip_qkv") is not None,
    }


def olmoe_experts(config: Config, hidden: int) -> Moe:
    """OLMoE's experts; none is shared."""
    return routed_moe(
        config, hidden, experts=64, top_k=8, ffn=2048, ffn_key="intermediate_size",
        counts=("num_experts", "num_local_experts"),
    )  # fmt: skip


OLMO2 = replace(LLAMA, vocab=50304, biases=ATTENTION_ONLY, norm=rms_float, norms=POST,
                attention=partial(whole_norms, impl="rms_float"))  # fmt: skip
ROWS = {
    "olmo2": OLMO2,
    # three layers of four under a window
    "olmo3": replace(OLMO2, windows=typed(4096, lambda i: (i + 1) % 4 != 0), trains=False),
    "olmoe": replace(LLAMA, hidden=2048, layers=16, heads=16, vocab=50304, max_seq_len=4096,
                     attention=olmoe_attention, experts=olmoe_experts),
}  # fmt: skip
FAMILIES = readers(ROWS)
