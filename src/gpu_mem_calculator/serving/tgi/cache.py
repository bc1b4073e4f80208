"""TGI's paged KV cache: bytes of a token, and the tokens that a sequence takes."""

from __future__ import annotations

from ...ledger.num import round_up
from ...models.arch.blocks import Attention, LatentAttention
from ...run.run import Run
from ...run.weights.rank_weights import BITS
from ...run.weights.shards import ServerShard


def token_bytes(run: Run, shard: ServerShard) -> int:
    """Bytes of one token in every layer on the rank.

    Layers with a window keep every token, and latents are stored as keys and values.
    """
    bits = 8 if run.options["kv_cache_dtype"] == "fp8" else BITS[run.precision]
    elements = 0
    for layer in shard.layers(run.arch):
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            elements += shard.kv_heads(mixer.kv_heads) * 2 * mixer.head_dim
        elif isinstance(mixer, LatentAttention):
            head_width = max(mixer.nope_dim + mixer.rope_dim, mixer.value_dim)
            elements += mixer.heads // shard.attention_tp * 2 * head_width
    return elements * bits // 8


def sequence_tokens(context: int, block: int) -> int:
    """Tokens of a sequence in whole blocks; its last token is not stored (flash_causal_lm.py)."""
    return int(round_up(max(1, context - 1), block))
