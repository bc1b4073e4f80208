"""DeepSeek's latent attention (MLA) as transformers 5.17.0 trains and runs it."""

from __future__ import annotations

from ....models.arch.blocks import LatentAttention
from ...autograd.tape import Tape, Value
from .attention_inputs import AttentionInputs
from .attention_kernels import attend
from .cache import LayerCache
from .linear import linear
from .norms import norm
from .rotary import rotate
from .setting import BlockSetting


def latent_attention(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    block: LatentAttention,
    *,
    masked: bool = False,
    cache: LayerCache | None = None,
) -> Value:
    """DeepSeek's MLA as transformers trains it: keys and values are computed for every head.

    models/deepseek_v3/modeling_deepseek_v3.py: q and k are concatenations of a part without and
    a part with rotary embedding, head by head; their head size differs from the values'.
    """
    tokens = setting.tokens
    q = linear(tape, setting, x, block.query[0])
    if block.query_norm is not None:
        q = linear(tape, setting, norm(tape, setting, q, block.query_norm), block.query[1])
    if cache is not None:
        return _cached_latent(tape, setting, x, q, block, cache, masked=masked)
    latent = linear(tape, setting, x, block.kv_a)
    kv, rope = tape.split(
        "mla.split",
        latent,
        [("mla.latent", tokens * block.kv_rank), ("mla.k_rope", tokens * block.rope_dim)],
    )
    kv = linear(tape, setting, norm(tape, setting, kv, block.kv_norm), block.kv_b)
    per_head = tokens * block.heads
    q_nope, q_rope = tape.split(
        "mla.q_split",
        q,
        [("mla.q_nope", per_head * block.nope_dim), ("mla.q_rope", per_head * block.rope_dim)],
    )
    k_nope, value = tape.split(
        "mla.kv_split",
        kv,
        [("mla.k_nope", per_head * block.nope_dim), ("mla.value", per_head * block.value_dim)],
    )
    q_rope = rotate(tape, setting, q_rope, (1, 1), block.rotary_impl)
    k_rope = rotate(tape, setting, rope, (1, 1), block.rotary_impl)
    size = per_head * (block.nope_dim + block.rope_dim)
    query = tape.op("mla.query", q_nope, q_rope, elements=size)
    key = tape.op("mla.key", k_nope, k_rope, elements=size)
    heads = _latent_heads(block, masked, cached=False)
    mixed = attend(tape, setting, query, key, value, heads)
    out = linear(tape, setting, mixed, block.output)
    tape.hold(query, key, value)
    return out


def _cached_latent(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    q: Value,
    block: LatentAttention,
    cache: LayerCache,
    *,
    masked: bool,
) -> Value:
    """The same with a cache, which holds the latents; keys and values are computed from all of them
    (modeling_deepseek_v3.py, DeepseekV3Attention.forward and expand_kv).
    """
    tokens, rows = setting.tokens, setting.batch * cache.length(setting) * block.heads
    per_head = tokens * block.heads
    q_nope, q_rope = tape.split(
        "mla.q_split",
        q,
        [("mla.q_nope", per_head * block.nope_dim), ("mla.q_rope", per_head * block.rope_dim)],
    )
    latent = linear(tape, setting, x, block.kv_a)
    kv, rope = tape.split(
        "mla.split",
        latent,
        [("mla.latent", tokens * block.kv_rank), ("mla.k_rope", tokens * block.rope_dim)],
    )
    kv = norm(tape, setting, kv, block.kv_norm)
    q_rotated = rotate(tape, setting, q_rope, (1, 1), block.rotary_impl)
    k_rope = rotate(tape, setting, rope, (1, 1), block.rotary_impl)
    kv, k_rope = cache.update(tape, setting, kv, k_rope)
    size = block.nope_dim + block.rope_dim
    query = tape.op("mla.query", q_nope, q_rotated, elements=per_head * size)
    expanded = linear(tape, setting, kv, block.kv_b)
    k_nope, value = tape.split(
        "mla.kv_split",
        expanded,
        [("mla.k_nope", rows * block.nope_dim), ("mla.value", rows * block.value_dim)],
    )
    key = tape.op("mla.key", k_nope, k_rope, elements=rows * size)
    heads = _latent_heads(block, masked, cached=False)
    mixed = attend(tape, setting, query, key, value, heads)
    out = linear(tape, setting, mixed, block.output)
    tape.hold(query, key, value, q_nope, q_rotated, latent)
    return out


def _latent_heads(block: LatentAttention, masked: bool, *, cached: bool) -> AttentionInputs:
    """A key and a value for every query head; q is concatenated from two parts, head by head."""
    return AttentionInputs(
        heads=block.heads,
        kv_heads=block.heads,
        head_dim=block.nope_dim + block.rope_dim,
        value_dim=block.value_dim,
        masked=masked,
        dropout=block.dropout,
        head_major=True,
        cached=cached,
    )
