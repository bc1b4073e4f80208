"""Eager attention: the Python code of each family (transformers 5.17.0)."""

from __future__ import annotations

from ....ledger.num import Num, holds, sized
from ...autograd.tape import Tape, Value
from .attention_inputs import AttentionInputs, repeat_keys_and_values
from .ops import maybe_dropout, scale
from .setting import BlockSetting


def eager(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """eager_attention_forward (modeling_llama.py:191) and the families' variants of it.

    Autocast casts what a matmul reads, not what the function names: q and k keep the dtype of their
    rotary tables, and so do the probabilities, which have q's dtype (GPT-2 and a few others: v's).
    The softmax's backward allocates grad · output as workspace (SoftMax.cu,
    softmax_backward_cuda_out).
    """
    if not setting.training:
        return eager_inference(tape, setting, q, k, v, heads)
    if heads.float_scores:  # modeling_gpt_neo.py:103, modeling_gptj.py:147: q and k alone
        q, k = tape.cast(q, 32), tape.cast(k, 32)
    wide = (q, k) if heads.float_scores else ()
    bits = q.bits if heads.float_softmax and not heads.sinks else v.bits
    keys, values = repeat_keys_and_values(tape, setting, k, v, heads)
    operands = _queries_and_keys(tape, setting, q, (k, keys), heads)
    early_v = _values(tape, setting, q, (v, values), heads) if heads.in_place else None
    tape.core = True
    area = setting.tokens * setting.keys * heads.heads
    scores = tape.op(
        "attn.scores",
        *operands[:2],
        elements=area,
        bits=setting.matmul_bits if setting.autocast else q.bits,
        saves=operands,
        product=True,
        scales=heads.in_place and not heads.broadcast,  # baddbmm's alpha (BloomAttention)
    )
    biased = _with_bias(tape, setting, scores, heads)
    probs = _probabilities(tape, setting, biased, heads)
    if heads.in_place:
        tape.hold(scores)
    named = maybe_dropout(
        tape, setting, _cast_back(tape, probs, bits, biased, heads), heads.dropout
    )
    tape.returned.append(named)
    weights = tape.cast(named, setting.matmul_bits if setting.autocast else v.bits)
    v_operands = early_v or _values(tape, setting, q, (v, values), heads)
    size = setting.tokens * (heads.heads * heads.value_dim)
    out = tape.op(
        "attn.mixed",
        weights,
        v_operands[0],
        elements=size,
        saves=(weights, *v_operands),
        product=True,
    )
    tape.core = False
    tape.hold(*wide)  # the function that casts them returns before the heads are merged
    contiguous = tape.op("attn.out", out)
    repeated = () if wide else (keys, values)
    tape.hold(out, named, *repeated, *([biased] if heads.float_bias else []))
    if heads.in_place and not heads.broadcast:  # BloomAttention: attention_scores, attn_weights
        tape.branch += [scores, biased, *operands[:2], v_operands[0]]  # and the copies
    return contiguous


def _queries_and_keys(
    tape: Tape, setting: BlockSetting, q: Value, key: tuple[Value, Value], heads: AttentionInputs
) -> tuple[Value, ...]:
    """q and k as the first matmul reads them, then what it saves besides where they are views.

    `key`: k before and after it is repeated for every query head.
    """
    (k, keys), copied = key, heads.grouped and heads.kv_heads > 1
    size = setting.key_tokens * (heads.heads * heads.head_dim)
    left = _operand(tape, setting, q, q.elements(), q.elements(), contiguous=heads.head_major)
    contiguous = copied or (heads.head_major and not heads.grouped)
    right = _operand(tape, setting, keys, size, k.elements(), contiguous=contiguous)
    return (left[0], right[0], *left[1:], *right[1:])


def _values(
    tape: Tape, setting: BlockSetting, q: Value, value: tuple[Value, Value], heads: AttentionInputs
) -> tuple[Value, ...]:
    """v as the second matmul reads it, then what it saves besides: a view of a fused projection
    keeps all of that alive, unless q is a view of it, too.

    `value`: v before and after it is repeated for every query head.
    """
    v, values = value
    stored = v.elements() if q.base == v.base else tape.owner(v).elements()
    size = setting.key_tokens * (heads.heads * heads.value_dim)
    copied = heads.grouped and heads.kv_heads > 1
    return _operand(tape, setting, values, size, stored, contiguous=copied)


def _operand(
    tape: Tape, setting: BlockSetting, x: Value, elements: Num, stored: Num, *, contiguous: bool
) -> tuple[Value, ...]:
    """What a matmul reads, cast by autocast, and copied where batch and heads do not merge; then
    what it saves besides.

    A tensor stored head by head (`contiguous`), by a concatenation or a copy for every head, is
    read as it is. One sequence needs no copy either: then the storage of x, of `stored` elements,
    is saved.
    """
    x = tape.cast(x, setting.matmul_bits) if setting.autocast else x
    if contiguous:
        return (x,)
    several = holds(setting.batch > 1)
    if type(several) is int and not several and tape.owner(x).elements() == x.elements():
        return (x,)
    passes = type(several) is int and several == 1  # a copy's gradient is its source's
    copy = tape.op(f"{x.name}.contiguous", x, elements=elements * several, passes=passes)
    if type(several) is int:
        return copy, tape.value(f"{x.name}.view", stored * (1 - several), x.bits, grad=False)
    source = tape.value(f"{x.name}.source", 0, x.bits, grad=False)  # outside core attention
    return copy, tape.op(f"{x.name}.view", source, elements=stored * (1 - several))


def _with_bias(tape: Tape, setting: BlockSetting, scores: Value, heads: AttentionInputs) -> Value:
    if heads.float_logits:
        return _falcon_alibi(tape, scores)
    return _biased(tape, setting, scores, heads)


def eager_inference(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """Eager attention without autograd or autocast; a cache has concatenated k and v.

    q and k are in fp32 where the family asks for it (modeling_gpt_neo.py:103, modeling_gptj.py).
    matmul copies operands whose batch and head dimensions cannot be merged; a q that was
    concatenated head by head needs no copy. There is no backward.
    """
    if heads.float_scores:
        q, k = tape.cast(q, 32), tape.cast(k, 32)
    fp32_operands = (q, k) if heads.float_scores else ()
    q, k, v = _operands(tape, setting, q, k, v, heads)
    tape.core = True
    area = setting.tokens * setting.keys * heads.heads
    scores = tape.op("attn.scores", q, k, elements=area, saves=(q, k), product=True)
    biased = _with_bias(tape, setting, scores, heads)
    probs = _probabilities(tape, setting, biased, heads)
    if heads.in_place:
        tape.hold(scores)
    probs = maybe_dropout(
        tape, setting, _cast_back(tape, probs, v.bits, biased, heads), heads.dropout
    )
    tape.returned.append(probs)
    size = setting.tokens * (heads.heads * heads.value_dim)
    if not (heads.grouped or heads.cached):
        v = tape.op("attn.v_contiguous", v)
    out = tape.op("attn.mixed", probs, v, elements=size, saves=(probs, v), product=True)
    tape.core = False
    contiguous = tape.op("attn.out", out)
    tape.hold(out, probs, *([biased] if heads.float_bias else []))
    repeated = (k, v) if heads.grouped and not heads.broadcast else ()
    tape.hold(*repeated, *fp32_operands)
    tape.hold(*([q] if setting.quirks.query_copy_named else []))
    if heads.in_place and not heads.broadcast:  # BloomAttention: attention_scores, attn_weights
        tape.hold(scores, biased)
    return contiguous


def _operands(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> tuple[Value, Value, Value]:
    """q, k and v stored as matmul reads them: contiguous, one k and v for every query head.

    One sequence needs no copy of q.
    """
    if heads.grouped:  # else concatenated, and so contiguous: by a cache, or from latents
        rows = setting.key_tokens * heads.heads
        k = tape.op("attn.k_contiguous", k, elements=rows * heads.head_dim)
        v = tape.op("attn.v_contiguous", v, elements=rows * heads.value_dim)
    if not heads.head_major:
        q = tape.op("attn.q_contiguous", q, elements=q.elements() * holds(setting.batch > 1))
    return q, k, v


def _biased(tape: Tape, setting: BlockSetting, scores: Value, heads: AttentionInputs) -> Value:
    """Scores times the scale, capped (modeling_gemma2.py:225), plus the mask.

    The mask has the dtype of the embedding's output (masking_utils.py eager_mask), which autocast
    leaves as it is: the sum has the wider of both dtypes.

    `in_place`: the scale is part of the matmul (BloomAttention) or applied in place
    (FalconAttention), and the scores stay named. `float_bias`: MPT adds a bias in fp32.
    """
    scaled = scores if heads.in_place else scale(tape, scores, "attn.scaled")
    if heads.softcap:
        divided = scale(tape, scaled, "attn.divided")
        capped = tape.op("attn.tanh", divided, save_out=True)
        scaled = scale(tape, capped, "attn.capped")
    if heads.float_bias:
        scaled = tape.op("attn.biased", scaled, bits=32)
    bits = max(scaled.bits, setting.bits)
    return tape.op("attn.masked", scaled, bits=bits, passes=bits == scaled.bits)


def _falcon_alibi(tape: Tape, scores: Value) -> Value:
    """Scores in fp32, plus ALiBi, plus the mask, each with a name (modeling_falcon.py:403), then
    cast to the activations' dtype for the softmax.
    """
    scores32 = tape.cast(scores, 32)
    logits = tape.op("attn.logits", scores32, passes=True)
    masked = tape.op("attn.masked", logits, passes=True)
    out = tape.cast(masked, scores.bits)
    tape.hold(scores32, logits, masked)
    return out


def _probabilities(
    tape: Tape, setting: BlockSetting, scores: Value, heads: AttentionInputs
) -> Value:
    """The softmax, mostly in fp32; with sinks over one more column, which is then dropped.

    For fp16 the kernel itself converts what it reads to fp32 (torch 2.11 SoftMax.cpp,
    `half_to_float`).
    """
    bits = 32 if heads.float_softmax or heads.float_scores or setting.autocast else scores.bits
    if heads.sinks:
        return _with_sinks(tape, setting, scores, heads, bits)
    logits = scores if setting.half and scores.bits == 16 else tape.cast(scores, bits)
    work = sized(scores.elements(), bits)
    probs = tape.op("attn.softmax", logits, bits=bits, save_out=True, back_temp=work, inside=True)
    tape.hold(scores)
    return probs


def _cast_back(tape: Tape, probs: Value, bits: int, scores: Value, heads: AttentionInputs) -> Value:
    """The probabilities in the activations' dtype. A softmax in fp32 is cast in the statement that
    names its result, so that the scores are alive until then (modeling_llama.py:208).
    """
    cast = tape.cast(probs, bits)
    if heads.float_softmax:
        tape.hold(scores)
    return cast


def _with_sinks(
    tape: Tape, setting: BlockSetting, scores: Value, heads: AttentionInputs, bits: int
) -> Value:
    """cat([scores, sinks]) minus the row's maximum, the softmax of that, all but its last column
    (modeling_gpt_oss.py:251).
    """
    rows = setting.tokens * heads.heads
    sinks = tape.param("sinks", heads.heads, setting.weight_bits, grad=not setting.frozen)
    joined = tape.op("attn.joined", scores, sinks, elements=scores.elements() + rows)
    index = tape.value("attn.max_index", rows, 64, grad=False)
    less = tape.op("attn.less_max", joined, saves=(index,))
    tape.hold(scores)
    logits = tape.cast(less, bits)
    probs = tape.op("attn.softmax", logits, save_out=True, back_temp=logits.bytes)
    parts = [("attn.probs", scores.elements()), ("attn.sink_probs", rows)]
    return tape.split("attn.cut", probs, parts)[0]
