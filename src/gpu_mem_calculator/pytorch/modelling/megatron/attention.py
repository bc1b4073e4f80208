"""Attention as Megatron-Core runs it: unfused in the local spec, fused with Transformer Engine."""

from __future__ import annotations

from msgspec import Struct

from ....ledger.num import EMPTY, Num, choose, holds, larger, round_up, sized
from ....models.arch.blocks import Attention, LatentAttention
from ...autograd.recompute import discard
from ...autograd.tape import Tape, Value
from .ops import MegatronSetting, column_linear, norm, replicated_linear, row_linear

# Of latent attention; the rest of it, up to core attention, is `mla_up_proj` of recompute_modules.
DOWN_PROJECTIONS = ("linear_q_down", "linear_kv_down", "mla.split")


class MegatronHeads(Struct, frozen=True):
    """The sizes of one rank's attention call: its attention heads, and elements of one head."""

    heads: Num
    head_dim: Num
    value_dim: Num
    grouped: bool = False
    dropout: float = 0.0


def attention(tape: Tape, setting: MegatronSetting, x: Value, block: Attention) -> Value:
    """Record linear_qkv, norms, rotary embedding, core attention, linear_proj
    (attention.py:1387-1906).

    With fewer key-value heads than ranks the projection is gathered over the ranks and each
    takes its part (attention.py:1842). Python names q, k and v, from before the rotary embedding
    and from after it, until the projection is done.
    """
    size, groups = block.head_dim, block.kv_heads
    heads, kv_heads = block.heads // setting.tp, larger(groups // setting.tp, 1)
    columns = (block.heads + 2 * groups) * size
    mixed = column_linear(
        tape,
        setting,
        x,
        "linear_qkv",
        setting.hidden,
        columns // setting.tp,
        gathered_outs=choose(setting.tp > groups, columns, columns // setting.tp),
        bias=block.inputs[0].bias,
    )
    sizes = (("q", heads), ("k", kv_heads), ("v", kv_heads))
    q, k, v = tape.split(
        "attn.split", mixed, [(f"attn.{n}", setting.tokens * count * size) for n, count in sizes]
    )
    grouped = block.heads != groups
    if grouped:
        q = tape.op("attn.q_copy", q, passes=True)
    before = (q, k, v)
    if len(block.norms) == 2:
        q, k = norm(tape, setting, q, block.norms[0]), norm(tape, setting, k, block.norms[1])
    if block.rotary_dim:
        q, k = (_rotate(tape, setting, value, block) for value in (q, k))
    if setting.transformer_engine and (block.rotary_dim or grouped):
        v = tape.op("attn.v_contiguous", v, passes=True)
    shard = MegatronHeads(heads, size, block.value_dim or size, grouped, block.dropout)
    out = core_attention(tape, setting, q, k, v, shard)
    width = block.heads * (block.value_dim or size) // setting.tp
    projected = row_linear(tape, setting, out, "linear_proj", width, setting.hidden)
    tape.hold(*before, q, k, v)
    return projected


def _rotate(tape: Tape, setting: MegatronSetting, x: Value, block: Attention) -> Value:
    """Rotary embedding: one fused kernel with Transformer Engine, else five operations.

    Unfused, the cosines and sines are computed in fp32, cast to the activations' dtype for q and
    for k in every layer and saved; the two halves are swapped, and the result is concatenated with
    the part that is not rotated, which may be empty (rope_utils.py:84, 126-137). Backward copies
    the gradients of both parts to tensors of x's size. A slice that is the whole of x is an alias
    (torch 2.11 csrc/autograd/python_variable_indexing.cpp applySlicing).
    """
    name = x.name.replace("attn", "rotary")
    if setting.transformer_engine:
        return tape.op(name, x)
    tables = setting.length * block.rotary_dim
    cos = tape.value(f"{name}.cos", tables, setting.bits, grad=False)
    sin = tape.value(f"{name}.sin", tables, setting.bits, grad=False)
    size = x.elements() * block.rotary_dim // block.head_dim
    wide = sized(tables, 32)
    whole = block.rotary_dim == block.head_dim
    part = tape.alias(f"{name}.part", x) if whole else tape.view(f"{name}.part", x, size)
    rest = tape.view(f"{name}.rest", x, x.elements() - size)
    left = tape.op(f"{name}.left", part, saves=(cos,), temp=(wide, wide))
    halves = [(f"{name}.x1", size // 2), (f"{name}.x2", size // 2)]
    first, second = tape.split(f"{name}.chunk", part, halves)
    negative = tape.op(f"{name}.negative", second)
    half = tape.op(f"{name}.half", negative, first, elements=size, passes=True)
    right = tape.op(f"{name}.right", half, saves=(sin,))
    rotated = tape.op(f"{name}.sum", left, right, passes=True)
    return tape.op(name, rotated, rest, elements=x.elements(), passes=True)


def core_attention(
    tape: Tape, setting: MegatronSetting, q: Value, k: Value, v: Value, heads: MegatronHeads
) -> Value:
    """Record softmax(q kᵀ) v, the part that selective recompute runs again."""
    tape.core = True
    fused = setting.transformer_engine and setting.fused_attention
    flash = fused and setting.bits == 16  # fp32 has no fused kernel
    out = (_fused if flash else _unfused)(tape, setting, q, k, v, heads)
    tape.core = False
    return out


def _fused(
    tape: Tape, setting: MegatronSetting, q: Value, k: Value, v: Value, heads: MegatronHeads
) -> Value:
    """FlashAttention or cuDNN: saves q, k, v, the output and an fp32 log-sum-exp per row and
    attention head.

    Backward's workspace has an fp32 accumulator for dq and a row sum. With context parallelism the
    ring's fp32 result is cast twice, once for backward and once to return
    (context_parallel.py:2030, :2073), and the ring holds that result and two buffers for keys
    and values.
    """
    rows = setting.tokens * heads.heads
    lse = tape.value("attn.logsumexp", rows, 32, grad=False)
    out = rows * heads.value_dim
    in_ring = holds(setting.cp > 1)
    second = tape.value("attn.out_for_backward", out * in_ring, setting.bits, grad=False)
    ring = (sized(out, 32) + (k.bytes + v.bytes) * 2) * in_ring
    repeated = 2 * q.bytes if heads.grouped else EMPTY
    work = sized(rows, 32) + sized(rows * round_up(heads.head_dim, 32), 32) + repeated
    return tape.op(
        "attn.out",
        q,
        k,
        v,
        elements=out,
        saves=(q, k, v, lse, second),
        save_out=True,
        temp=ring,
        back_temp=(work, ring),
    )


def _unfused(
    tape: Tape, setting: MegatronSetting, q: Value, k: Value, v: Value, heads: MegatronHeads
) -> Value:
    """baddbmm, mask and softmax, dropout, bmm (dot_product_attention.py:130-245; Transformer Engine
    2.18 attention/dot_product_attention/backends.py UnfusedDotProductAttention).

    Grouped keys and values are repeated; they and `scores` stay named to the end. The first
    argument of baddbmm is the global memory buffer in local layers, and a new tensor in Transformer
    Engine's.
    """
    rows = setting.tokens * heads.heads
    if heads.grouped:
        inputs = [(x,) if setting.selective else () for x in (k, v)]  # a checkpoint saves them
        k = tape.op("attn.k_repeated", k, elements=rows * heads.head_dim, saves=inputs[0])
        v = tape.op("attn.v_repeated", v, elements=rows * heads.value_dim, saves=inputs[1])
    context = rows * heads.value_dim
    area = setting.batch * heads.heads * setting.seq * setting.seq
    unused = sized(area, setting.bits) if setting.transformer_engine else EMPTY
    scores = tape.op("attn.scores", q, k, elements=area, saves=(q, k), scales=True, temp=unused)
    probs = softmax(tape, setting, scores, softmax_kernel(setting, heads.heads))
    if heads.dropout:
        mask = tape.op("attn.dropout_mask", probs, elements=area, bits=8)
        mask.grad = False
        probs = tape.op(
            "attn.dropped", probs, mask, elements=area, bits=setting.bits, saves=(mask,)
        )
    mixed = tape.op("attn.mixed", v, probs, elements=context, saves=(probs, v))
    out = tape.op("attn.out", mixed, passes=True)
    tape.hold(k, v, scores, probs)
    return out


def softmax_kernel(setting: MegatronSetting, heads: Num) -> Num:
    """1 where the fused softmax runs, else 0: it needs 16 bits and certain sizes.

    fusions/fused_softmax.py:256: 16 < s <= 4096, s and batch × heads multiples of 4. Transformer
    Engine's own takes 16 < s < 16384, a multiple of 8 (2.18 dot_product_attention/softmax.py).
    """
    if setting.transformer_engine and setting.bits == 16:
        short = holds(setting.seq > 16) * holds(setting.seq < 16384)
        return short * holds(setting.seq % 8 == 0) * holds(setting.batch * heads % 4 == 0)
    if not setting.fused_softmax or setting.bits == 32:
        return 0
    short = holds(setting.seq > 16) * holds(setting.seq <= 4096)
    return short * holds(setting.seq % 4 == 0) * holds(setting.batch * heads % 4 == 0)


def softmax(tape: Tape, setting: MegatronSetting, scores: Value, kernel: Num) -> Value:
    """The masked softmax: in fp32 between two casts, or in 16 bits without casts where `kernel` is
    1.

    torch's softmax backward allocates grad · output as a new tensor (ATen
    softmax_backward_cuda_out); the fused kernel works in place (fusions/fused_softmax.py).
    """
    if setting.bits == 32 or not (setting.float_softmax or setting.transformer_engine):
        work = scores.bytes * (1 - kernel)
        return tape.op("attn.softmax", scores, save_out=True, back_temp=work)
    area = scores.elements()
    unfused = area * (1 - kernel)
    scores32 = tape.op("attn.scores_fp32", scores, elements=unfused, bits=32)
    # In place, but not in backward:
    (masked,) = tape.split("attn.mask", scores32, [("attn.masked", unfused)])
    soft = tape.op(
        "attn.softmax",
        masked,
        elements=4 * unfused + 2 * area * kernel,
        bits=8,
        save_out=True,
        back_temp=sized(unfused, 32),
        inside=True,
    )
    probs = tape.op("attn.probabilities", soft, elements=unfused, bits=setting.bits)
    tape.hold(scores, scores32)
    return probs


def latent_attention(
    tape: Tape, setting: MegatronSetting, x: Value, block: LatentAttention
) -> Value:
    """Record multi-latent attention: small latents on every rank, attention heads sharded by tensor
    parallelism.

    multi_latent_attention.py get_query_key_value_tensors: the up-projections' outputs are
    copied into contiguous query, key and value.
    """
    heads, width = block.heads // setting.tp, block.nope_dim + block.rope_dim
    outs, begin = heads * width, len(tape.ops)
    if block.query_norm is None:
        q = column_linear(tape, setting, x, "linear_q_proj", setting.hidden, outs)
    else:
        low = replicated_linear(tape, setting, x, "linear_q_down", setting.hidden, block.query_rank)
        low = norm(tape, setting, low, block.query_norm)
        q = column_linear(tape, setting, low, "linear_q_up", block.query_rank, outs)
    low_width = block.kv_rank + block.rope_dim
    latent = replicated_linear(tape, setting, x, "linear_kv_down", setting.hidden, low_width)
    tokens = setting.local_tokens
    kv, rope = tape.split(
        "mla.split",
        latent,
        [("mla.latent", tokens * block.kv_rank), ("mla.k_rope", tokens * block.rope_dim)],
    )
    kv = norm(tape, setting, kv, block.kv_norm)
    up = heads * (block.nope_dim + block.value_dim)
    kv = column_linear(tape, setting, kv, "linear_kv_up", block.kv_rank, up)
    query = tape.op("mla.query", q, elements=setting.tokens * outs)
    key = tape.op("mla.key", kv, rope, elements=setting.tokens * outs)
    value = tape.op("mla.value", kv, elements=setting.tokens * heads * block.value_dim)
    up_ops = [op for op in tape.ops[begin:] if op.name not in DOWN_PROJECTIONS]
    shard = MegatronHeads(heads, width, block.value_dim, False, block.dropout)
    out = core_attention(tape, setting, query, key, value, shard)
    if "mla_up_proj" in setting.recomputed:
        discard(tape, up_ops, query, key, value)
    projected = row_linear(
        tape, setting, out, "linear_proj", heads * block.value_dim, setting.hidden
    )
    tape.hold(query, key, value)
    return projected
