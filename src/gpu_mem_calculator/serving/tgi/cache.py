"""TGI's paged KV cache: bytes of a token, and the tokens that a sequence takes."""

from __future__ import annotations

from ...ledger.num import ceil_div
from ...model.blocks import Attention, LatentAttention
from ...run.run import Run
from ...weights.rank_weights import BITS
from ...weights.shards import ServerShard


def token_bytes(run: Run, own: ServerShard) -> int:
    """One token in every layer, whatever its window; latents are kept as keys and values."""
    bits = 8 if run.options["kv_cache_dtype"] == "fp8" else BITS[run.precision]
    total = 0
    for layer in own.layers(run.arch):
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            total += own.kv_heads(mixer.kv_heads) * 2 * mixer.head_dim
        elif isinstance(mixer, LatentAttention):
            wide = max(mixer.nope_dim + mixer.rope_dim, mixer.value_dim)
            total += mixer.heads // own.attention_tp * 2 * wide
    return total * bits // 8


def sequence_tokens(context: int, block: int) -> int:
    """Places of a sequence, in whole blocks; its last token needs none (flash_causal_lm.py)."""
    return int(ceil_div(max(1, context - 1), block)) * block
