"""Attention blocks as transformers 5.17.0 writes them, before the kernel and after it."""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from ...ledger.num import SINGLE
from ...model.blocks import Attention, LatentAttention
from .attention_inputs import AttentionInputs
from .attention_kernels import attend, kernel, repeats_heads
from .cache import LayerCache
from .linear import linear
from .norms import norm
from .ops import maybe_dropout
from .rotary import layer_tables, rotate
from .setting import BlockSetting


def attention(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    block: Attention,
    *,
    masked: bool = False,
    cache: LayerCache | None = None,
) -> Value:
    """Record projections, norms on q and k, rotary embedding, the kernel, the output projection."""
    heads = _inputs(block, masked=masked, cached=cache is not None)
    q, k, v = projections = _project(tape, setting, x, block, heads)
    if block.expanded:
        size = setting.tokens * (block.heads * block.head_dim)
        k = tape.op("attn.k_expanded", k, elements=size)
        v = tape.op("attn.v_expanded", v, elements=size)
    early_or_late = setting.quirks.query_norm_early or _norms_after_rotary(setting, block)
    if len(block.norms) == 2 and not early_or_late:
        q, k = norm(tape, setting, q, block.norms[0]), norm(tape, setting, k, block.norms[1])
    if block.clipped and len(block.inputs) > 1:
        q, k, v = (_clamp_in_place(tape, value) for value in (q, k, v))
    parts: list[Value] = []
    q, k = _embed_positions(tape, setting, q, k, block, parts)
    if cache is not None:
        k, v = cache.update(tape, setting, k, v)
    mixed = attend(tape, setting, q, k, v, heads)
    out = linear(tape, setting, mixed, block.output)
    out = maybe_dropout(tape, setting, out, block.residual_dropout)
    if setting.quirks.residual_inside:
        tape.branch += [q, k, v]
    else:
        tape.hold(q, k, v)  # named until the block returns
    if setting.quirks.rotary_parts_named or (len(block.inputs) == 1 and not setting.training):
        tape.hold(*projections[:2], *parts)  # the fused projection, or views of it, have names
    return out


def _inputs(block: Attention, *, masked: bool, cached: bool) -> AttentionInputs:
    """The inputs of the block's attention call."""
    return AttentionInputs(
        heads=block.heads,
        kv_heads=block.heads if block.expanded else block.kv_heads,
        head_dim=block.head_dim,
        value_dim=block.value_dim or block.head_dim,
        masked=masked or block.alibi or block.always_masked,
        own_mask=not block.alibi,
        broadcast=block.always_masked,
        dropout=block.dropout,
        sdpa=block.sdpa,
        float_softmax=block.float_softmax,
        float_scores=block.float_scores,
        softcap=block.softcap is not None,
        sinks=block.sinks,
        in_place=block.always_masked or (block.alibi and not block.float_bias),
        float_bias=block.float_bias,
        float_logits=block.alibi and block.always_masked,
        head_major=block.rotary_impl == "joined" or 0 < block.rotary_dim < block.head_dim,
        cached=cached,
    )


def _project(
    tape: Tape, setting: BlockSetting, x: Value, block: Attention, heads: AttentionInputs
) -> tuple[Value, Value, Value]:
    """q, k and v from separate projections, or as views of a fused one."""
    norms = block.norms if setting.quirks.query_norm_early else ()
    apart = _heads_apart(setting, block, heads)
    late = setting.quirks.heads_late
    heads_last = [i for i in range(3) if apart[i] and (i != 1 or block.rotary_dim)]
    projections = []
    for index, layer in enumerate(block.inputs):
        out = linear(tape, setting, x, layer)
        own = index == 1 and not block.rotary_dim  # copied by the projection's own backward
        if apart[index] and len(block.inputs) == 3 and (own or not late):
            out = tape.view(f"{layer.name}.heads", out)
        if index < len(norms):
            out = norm(tape, setting, out, norms[index])
        projections.append(out)
    if block.clipped and len(projections) == 1:  # modeling_mpt.py:98
        projections = [tape.op("attn.clamped", projections[0], saves=projections)]
    if len(projections) == 1:
        sizes = zip("qkv", (block.heads, block.kv_heads, block.kv_heads), strict=True)
        named = [(f"attn.{name}", setting.tokens * (n * block.head_dim)) for name, n in sizes]
        if setting.quirks.fused_selected:
            projections = [tape.view(name, projections[0], size) for name, size in named]
        else:
            projections = tape.split("attn.split", projections[0], named)
    if late:
        projections = [
            tape.view(f"{out.name}.heads", out) if index in heads_last else out
            for index, out in enumerate(projections)
        ]
    q, k, v = projections
    return q, k, v


def _heads_apart(
    setting: BlockSetting, block: Attention, heads: AttentionInputs
) -> tuple[bool, bool, bool]:
    """Whether the gradients of q, k and v are stored head by head, so that each is copied for its
    projection: after rotary, after a matmul, and where k and v were copied for every query head.
    A matmul that reads k transposed returns its gradient transposed, in which the rows of several
    sequences do not merge. In an array of batches the largest one decides.
    """
    name = kernel(setting, heads)
    matmuls, rotary = name in ("eager", "math"), block.rotary_dim > 0
    repeated = repeats_heads(name, heads) or (matmuls and heads.grouped and not heads.broadcast)
    several, separate = block.kv_heads > 1, len(block.inputs) > 1
    batch = setting.batch if isinstance(setting.batch, SINGLE) else max(setting.batch.flat)
    copied = matmuls and (batch > 1 or separate)
    return (
        block.heads > 1 and (rotary or copied),
        several and (rotary or repeated or (copied and batch > 1)),
        several and (repeated or copied),
    )


def _clamp_in_place(tape: Tape, x: Value) -> Value:
    """x.clamp_(...): autograd saves a copy of x from before it (modeling_olmoe.py:254)."""
    before = tape.value(f"{x.name}.unclamped", x.elements(), x.bits, grad=False)
    clamped = tape.op(f"{x.name}.clamped", x, saves=(before,))
    clamped.base = x.base
    return clamped


def _embed_positions(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, block: Attention, parts: list[Value]
) -> tuple[Value, Value]:
    """The rotary embedding, and the norms on q and k that come after it (Llama 4, Hunyuan).

    Adds to `parts` what a family's code names besides: the part of each head that is rotated.
    """
    if block.rotary_dim:
        size, impl = (block.rotary_dim, block.head_dim), block.rotary_impl
        tables = layer_tables(tape, setting, block.rotary_dim, impl)
        before = (q, k)
        q = rotate(tape, setting, q, size, impl, tables)
        parts += tape.ops[-1].ins[:1] if setting.quirks.rotary_parts_named else ()
        if impl == "gptj":
            tables = layer_tables(tape, setting, block.rotary_dim, impl)
        k = rotate(tape, setting, k, size, impl, tables)
        parts += tape.ops[-1].ins[:1] if setting.quirks.rotary_parts_named else ()
        if setting.quirks.fp32_rotary_tables:
            wide = (q, k)
            q, k = tape.cast(q, before[0].bits), tape.cast(k, before[1].bits)
            tape.hold(*wide)  # both are cast in one statement
        tape.hold(*before)  # the caller names them until it has both
    if len(block.norms) == 2 and _norms_after_rotary(setting, block):
        q, k = norm(tape, setting, q, block.norms[0]), norm(tape, setting, k, block.norms[1])
    return q, k


def _norms_after_rotary(setting: BlockSetting, block: Attention) -> bool:
    return block.rotary_impl == "complex" or setting.quirks.norms_after_rotary


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
