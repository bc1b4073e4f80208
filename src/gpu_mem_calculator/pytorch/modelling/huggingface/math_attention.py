"""torch's reference path of attention, without a fused kernel (torch 2.11)."""

from __future__ import annotations

from ....ledger.num import EMPTY, Num, choose, holds, sized
from ...autograd.tape import Tape, Value
from .attention_inputs import AttentionInputs
from .ops import maybe_dropout, scale
from .setting import BlockSetting


def math_path(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """torch's reference path: every s × s map in full, and always in fp32
    (attention.cpp, _scaled_dot_product_attention_math). The softmax looks for rows without a key,
    which takes a boolean map (_safe_softmax).

    With `enable_gqa` keys and values are repeated first, a single head too (repeat_interleave
    always copies); else each matmul expands its operand over the heads (`broadcast`).
    """
    bits, broadcast = q.bits, heads.broadcast
    q, k, v = (tape.cast(x, 32) for x in (q, k, v))
    named = [q, k, v]
    q = scale(tape, q, "attn.q_scaled")
    named += [q, *_added_mask(tape, setting, heads, bits)]
    rows = setting.key_tokens * heads.heads
    if heads.grouped and not broadcast:
        k = tape.op("attn.k_repeated", k, elements=rows * heads.head_dim)
        v = tape.op("attn.v_repeated", v, elements=rows * heads.value_dim)
    named += [k, v]
    k = scale(tape, k, "attn.k_scaled")
    operand = _batched_query(tape, setting, q, heads)
    if broadcast:
        k = _expanded(tape, setting, k, rows * heads.head_dim)
    tape.core = True
    area = setting.tokens * setting.keys * heads.heads
    # The gradient of an expanded view is as large as q.
    work = q.bytes - k.bytes if broadcast else EMPTY
    mask = sized(area, 8)
    saves = (*operand, k)
    scores = tape.op("attn.scores", q, k, elements=area, saves=saves, back_temp=work, product=True)
    tape.hold(operand[0])
    probs = tape.op(  # a mask is added in place
        "attn.softmax", scores, save_out=True, temp=mask, back_temp=scores.bytes, inside=True
    )
    probs = maybe_dropout(tape, setting, probs, heads.dropout)
    if broadcast:
        v = _expanded(tape, setting, v, rows * heads.value_dim)
    out = tape.op(
        "attn.mixed",
        probs,
        v,
        elements=setting.tokens * (heads.heads * heads.value_dim),
        saves=(probs, v),
        back_temp=work,
        product=True,
    )
    tape.core = False
    tape.hold(*named)
    return tape.op("attn.out", tape.cast(out, bits))


def _expanded(tape: Tape, setting: BlockSetting, x: Value, elements: Num) -> Value:
    """Keys or values for every query head: a copy, because batch and heads do not merge, but a view
    with one sequence.
    """
    size = choose(setting.batch > 1, elements, x.elements())
    return tape.op(f"{x.name}.spread", x, elements=size)


def _batched_query(
    tape: Tape, setting: BlockSetting, q: Value, heads: AttentionInputs
) -> tuple[Value, ...]:
    """q as the matmul reads it: a copy, because batch and heads do not merge; then what is saved
    besides. One sequence, or a q that is stored head by head, needs no copy.
    """
    if heads.head_major:
        return (q,)
    several = holds(setting.batch > 1)
    if type(several) is int and not several:
        return (q,)
    source = tape.value("attn.q_source", 0, q.bits, grad=False)  # a copy's gradient is q's
    copy = tape.op("attn.q_copied", source, elements=q.elements() * several)
    return copy, tape.value("attn.q_view", q.elements() * (1 - several), q.bits, grad=False)


def _added_mask(
    tape: Tape, setting: BlockSetting, heads: AttentionInputs, bits: int
) -> list[Value]:
    """The additive mask, not saved for backward: made from a boolean one, or for `is_causal`
    (attention.cpp, ones().tril()); none where the caller passes an additive one.
    """
    causal = not (heads.masked or setting.decoding)
    if not (causal or (heads.masked and heads.own_mask)):
        return []
    bits = 32 if causal or setting.training else bits  # q's dtype after its cast, or before
    source = tape.value("attn.mask_source", 0, bits, grad=False)
    rows = setting.seq if causal or setting.training else setting.tokens
    if causal:
        source = tape.op("attn.ones", source, elements=rows * setting.keys, bits=8)
        source = tape.op("attn.lower", source)
    return [tape.op("attn.mask", source, elements=rows * setting.keys, bits=bits)]
