"""Attention blocks as transformers 5.17.0 writes them, before the kernel and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ledger.num import SINGLE
from ....models.arch.blocks import Attention
from ...autograd.tape import Tape, Value
from .attention_inputs import AttentionInputs
from .attention_kernels import attend, kernel, repeats_heads
from .liger import TORCH
from .linear import linear
from .norms import norm
from .ops import maybe_dropout
from .rotary import layer_tables, rotate
from .setting import BlockSetting

if TYPE_CHECKING:
    from .cache import LayerCache


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
    heads = _inputs(setting, block, masked=masked, cached=cache is not None)
    q, k, v = projections = _project(tape, setting, x, block, heads)
    if block.expanded:
        size = setting.tokens * (block.heads * block.head_dim)
        k = tape.op("attn.k_expanded", k, elements=size)
        v = tape.op("attn.v_expanded", v, elements=size)
    early_or_late = setting.quirks.query_norm_early or _norms_after_rotary(setting, block)
    if len(block.norms) == 2 and not early_or_late:
        q, k = _late_norms(tape, setting, q, k, block)
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


def _inputs(
    setting: BlockSetting, block: Attention, *, masked: bool, cached: bool
) -> AttentionInputs:
    """The inputs of the block's attention call."""
    partial = 0 < block.rotary_dim < block.head_dim
    joined = partial or (block.rotary_impl == "joined" and not setting.compiled)
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
        head_major=not setting.liger.rope and (joined or _norms_by_head(setting, block)),
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
        split = apart[index] and len(block.inputs) == 3 and (own or not late)
        normed = index < len(norms)
        contiguous = normed and setting.liger.attention_norms != TORCH  # Liger's norm copies itself
        if split and not contiguous:
            out = tape.view(f"{layer.name}.heads", out)
        if normed:
            out = norm(tape, setting, out, norms[index], setting.liger.attention_norms)
        if split and contiguous:
            out = tape.view(f"{layer.name}.heads", out)
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
    matmuls, rotary = name in ("eager", "math"), block.rotary_dim > 0 and not setting.liger.rope
    rotary = rotary or _norms_by_head(setting, block)
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
    if block.rotary_dim and setting.liger.rope:
        q, k = _liger_rotary(tape, setting, q, k, block)
    elif block.rotary_dim:
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


def _liger_rotary(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, block: Attention
) -> tuple[Value, Value]:
    """LigerRopeFunction (liger-kernel 0.8.5 ops/rope.py) turns q and k in place, and in backward
    their gradients. It copies what is not stored token by token: the parts of a fused projection,
    and what a norm of Liger's has stored head by head.
    """
    if len(block.inputs) > 1 and not _norms_by_head(setting, block):
        return q, k
    turned = [tape.op(f"rotary.{name}", x, passes=True) for name, x in (("q", q), ("k", k))]
    tape.hold(q, k)
    return turned[0], turned[1]


def _norms_by_head(setting: BlockSetting, block: Attention) -> bool:
    """Whether Liger's norms read q and k head by head, of which they make copies (Gemma 3)."""
    late = not setting.quirks.query_norm_early
    return late and len(block.norms) == 2 and setting.liger.attention_norms != TORCH


def _late_norms(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, block: Attention
) -> tuple[Value, Value]:
    """The norms of q and k once both are computed. Liger's, which read them head by head, copy
    them, and in backward the gradient of a result that Liger has turned.
    """
    kernel = setting.liger.attention_norms
    if not _norms_by_head(setting, block):
        first, second = block.norms
        return norm(tape, setting, q, first, kernel), norm(tape, setting, k, second, kernel)
    out = []
    for x, one in zip((q, k), block.norms, strict=True):
        copy = tape.op(f"{one.name}.contiguous", x, passes=True)
        normed = norm(tape, setting, copy, one, kernel)
        tape.hold(x)
        out.append(tape.view(f"{one.name}.tokens", normed) if setting.liger.rope else normed)
    return out[0], out[1]


def _norms_after_rotary(setting: BlockSetting, block: Attention) -> bool:
    return block.rotary_impl == "complex" or setting.quirks.norms_after_rotary
