"""Attention as Megatron-Core runs it: unfused in the local spec, fused with Transformer Engine."""

from __future__ import annotations

from msgspec import Struct

from ...autograd.tape import Tape, Value
from ...ledger.num import Num, choose, holds, larger, round_up
from ...model.blocks import Attention, LatentAttention
from .norms import norm
from .ops import MegatronSetting, column_linear, row_linear, whole_linear


class MegatronHeads(Struct, frozen=True):
    """The attention call of one rank."""

    heads: Num
    head_dim: Num
    value_dim: Num
    grouped: bool = False
    dropout: float = 0.0


def attention(tape: Tape, how: MegatronSetting, x: Value, block: Attention) -> Value:
    """linear_qkv, norms, rotary embedding, core attention, linear_proj (attention.py:1387-1906).

    With fewer key-value heads than ranks the projection is gathered over the ranks and each
    takes its part (attention.py:1842). Python names q, k and v, from before the rotary embedding
    and behind it, until the projection is done.
    """
    size, groups = block.head_dim, block.kv_heads
    heads, kv_heads = block.heads // how.tp, larger(groups // how.tp, 1)
    rows = (block.heads + 2 * groups) * size
    here = choose(how.tp > groups, rows, rows // how.tp)
    mixed = column_linear(tape, how, x, "linear_qkv", how.hidden, rows // how.tp, wide=here,
                          bias=block.inputs[0].bias)  # fmt: skip
    sizes = (("q", heads), ("k", kv_heads), ("v", kv_heads))
    q, k, v = tape.split(
        "attn.split", mixed, [(f"attn.{n}", how.tokens * count * size) for n, count in sizes]
    )
    grouped = block.heads != groups
    if grouped:
        q = tape.op("attn.q_copy", q, passes=True)
    before = (q, k, v)
    if len(block.norms) == 2:
        q, k = norm(tape, how, q, block.norms[0]), norm(tape, how, k, block.norms[1])
    if block.rotary_dim:
        q, k = (_rotate(tape, how, one, block) for one in (q, k))
    if how.transformer_engine and (block.rotary_dim or grouped):
        v = tape.op("attn.v_contiguous", v, passes=True)
    sizes_here = MegatronHeads(heads, size, block.value_dim or size, grouped, block.dropout)
    out = core_attention(tape, how, q, k, v, sizes_here)
    width = block.heads * (block.value_dim or size) // how.tp
    projected = row_linear(tape, how, out, "linear_proj", width, how.hidden)
    tape.hold(*before, q, k, v)
    return projected


def _rotate(tape: Tape, how: MegatronSetting, x: Value, block: Attention) -> Value:
    """Rotary embedding: one fused kernel with Transformer Engine, else five operations.

    Unfused, the cosines and sines are made in fp32, cast to the activations' dtype for q and for
    k in every layer and kept; one half is turned around, and the result is concatenated into a new
    tensor (rope_utils.py:84, 133-137).
    """
    name = x.name.replace("attn", "rotary")
    if how.transformer_engine:
        return tape.op(name, x)
    tables = how.length * block.rotary_dim
    cos = tape.value(f"{name}.cos", tables, how.bits, grad=False)
    sin = tape.value(f"{name}.sin", tables, how.bits, grad=False)
    size = x.elements() * block.rotary_dim // block.head_dim
    left = tape.op(f"{name}.left", x, elements=size, saves=(cos,), temp=(4 * tables, 4 * tables))
    half = tape.op(f"{name}.half", x, elements=size, temp=size * how.bits // 16)
    right = tape.op(f"{name}.right", half, saves=(sin,))
    turned = tape.op(f"{name}.sum", left, right, passes=True)
    return tape.op(name, turned, elements=x.elements(), passes=True)


def core_attention(
    tape: Tape, how: MegatronSetting, q: Value, k: Value, v: Value, heads: MegatronHeads
) -> Value:
    """softmax(q kᵀ) v, the part that selective recompute runs again."""
    tape.core = True
    flash = how.transformer_engine and how.bits == 16  # fp32 has no fused kernel
    out = (_fused if flash else _unfused)(tape, how, q, k, v, heads)
    tape.core = False
    return out


def _fused(
    tape: Tape, how: MegatronSetting, q: Value, k: Value, v: Value, heads: MegatronHeads
) -> Value:
    """FlashAttention or cuDNN: keeps q, k, v, the output and an fp32 log-sum-exp a row and head.

    Backward holds an fp32 accumulator for dq and a row sum. With context parallelism the ring's
    fp32 result is cast twice, once for backward and once to return
    (context_parallel.py:2030, :2073), and the ring holds that result and two buffers for keys
    and values.
    """
    rows = how.tokens * heads.heads
    lse = tape.value("attn.logsumexp", rows, 32, grad=False)
    out = rows * heads.value_dim
    many = holds(how.cp > 1)
    second = tape.value("attn.out_for_backward", out * many, how.bits, grad=False)
    ring = many * (out * 4 + 2 * (k.bytes + v.bytes))
    repeated = 2 * q.bytes if heads.grouped else 0
    work = rows * 4 + rows * round_up(heads.head_dim, 32) * 4 + repeated
    return tape.op(
        "attn.out", q, k, v, elements=out, saves=(q, k, v, lse, second), save_out=True,
        temp=ring, back_temp=(work, ring),
    )  # fmt: skip


def _unfused(
    tape: Tape, how: MegatronSetting, q: Value, k: Value, v: Value, heads: MegatronHeads
) -> Value:
    """baddbmm, mask and softmax, dropout, bmm (dot_product_attention.py:130-245).

    Grouped keys and values are repeated; they and `scores` are named to the end.
    """
    rows = how.tokens * heads.heads
    if heads.grouped:
        inputs = [(x,) if how.selective else () for x in (k, v)]  # which a checkpoint keeps
        k = tape.op("attn.k_repeated", k, elements=rows * heads.head_dim, saves=inputs[0])
        v = tape.op("attn.v_repeated", v, elements=rows * heads.value_dim, saves=inputs[1])
    context = rows * heads.value_dim
    area = how.batch * heads.heads * how.seq * how.seq
    scores = tape.op("attn.scores", q, k, elements=area, saves=(q, k))
    probs = softmax(tape, how, scores, softmax_kernel(how, heads.heads))
    if heads.dropout:
        mask = tape.op("attn.dropout_mask", probs, elements=area, bits=8)
        mask.grad = False
        probs = tape.op("attn.dropped", probs, mask, elements=area, bits=how.bits, saves=(mask,))
    mixed = tape.op("attn.mixed", v, probs, elements=context, saves=(probs, v))
    out = tape.op("attn.out", mixed, passes=True)
    tape.hold(k, v, scores, probs)
    return out


def softmax_kernel(how: MegatronSetting, heads: Num) -> Num:
    """1 where the fused softmax runs, else 0: 16 bits, and sizes it was built for.

    fusions/fused_softmax.py:256: 16 < s <= 4096, s and batch × heads multiples of 4.
    """
    if not how.fused_softmax or how.bits == 32:
        return 0
    short = holds(how.seq > 16) * holds(how.seq <= 4096)
    return short * holds(how.seq % 4 == 0) * holds(how.batch * heads % 4 == 0)


def softmax(tape: Tape, how: MegatronSetting, scores: Value, kernel: Num) -> Value:
    """The masked softmax: in fp32 between two casts, or where `kernel` is 1 in 16 bits, without.

    torch's softmax backward makes grad · output as a tensor of its own (ATen
    softmax_backward_cuda_out); the fused kernel works in place (fusions/fused_softmax.py).
    """
    if how.bits == 32 or not how.float_softmax:
        unfused = scores.bytes * (1 - kernel)
        return tape.op("attn.softmax", scores, save_out=True, back_temp=unfused)
    area = scores.elements()
    alone = area * (1 - kernel)
    wide = tape.op("attn.scores_fp32", scores, elements=alone, bits=32)
    (masked,) = tape.split("attn.mask", wide, [("attn.masked", alone)])  # in place, not backward
    soft = tape.op("attn.softmax", masked, elements=4 * alone + 2 * area * kernel, bits=8,
                   save_out=True, back_temp=4 * alone)  # fmt: skip
    probs = tape.op("attn.probabilities", soft, elements=alone, bits=how.bits)
    tape.hold(scores, wide)
    return probs


def latent_attention(tape: Tape, how: MegatronSetting, x: Value, block: LatentAttention) -> Value:
    """Multi-latent attention: small latents on every rank, heads cut by tensor parallelism.

    multi_latent_attention.py get_query_key_value_tensors: the up-projections' outputs are
    rewritten into contiguous query, key and value.
    """
    heads, width = block.heads // how.tp, block.nope_dim + block.rope_dim
    outs = heads * width
    if block.query_norm is None:
        q = column_linear(tape, how, x, "linear_q_proj", how.hidden, outs)
    else:
        low = whole_linear(tape, how, x, "linear_q_down", how.hidden, block.query_rank)
        low = norm(tape, how, low, block.query_norm)
        q = column_linear(tape, how, low, "linear_q_up", block.query_rank, outs)
    low_width = block.kv_rank + block.rope_dim
    latent = whole_linear(tape, how, x, "linear_kv_down", how.hidden, low_width)
    kv, rope = tape.split(
        "mla.split", latent,
        [("mla.latent", how.local_tokens * block.kv_rank),
         ("mla.k_rope", how.local_tokens * block.rope_dim)],
    )  # fmt: skip
    kv = norm(tape, how, kv, block.kv_norm)
    up = heads * (block.nope_dim + block.value_dim)
    kv = column_linear(tape, how, kv, "linear_kv_up", block.kv_rank, up)
    query = tape.op("mla.query", q, elements=how.tokens * outs)
    key = tape.op("mla.key", kv, rope, elements=how.tokens * outs)
    value = tape.op("mla.value", kv, elements=how.tokens * heads * block.value_dim)
    call = MegatronHeads(heads, width, block.value_dim, False, block.dropout)
    out = core_attention(tape, how, query, key, value, call)
    projected = row_linear(tape, how, out, "linear_proj", heads * block.value_dim, how.hidden)
    tape.hold(query, key, value)
    return projected
