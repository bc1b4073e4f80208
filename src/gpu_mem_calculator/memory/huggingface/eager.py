"""Attention written out in Python, as each family's `eager` code runs it (transformers 5.17.0)."""

from __future__ import annotations

from ..tape import Tape, Value
from .heads import Heads
from .ops import Setting, maybe_dropout, scale


def eager(tape: Tape, setting: Setting, q: Value, k: Value, v: Value, heads: Heads) -> Value:
    """eager_attention_forward (modeling_llama.py:191) and its kin.

    q and k are in fp32 where the family asks for it (modeling_gpt_neo.py:103, modeling_gptj.py).
    matmul copies operands whose batch and head dimensions cannot be merged; a q that was
    concatenated head by head needs no copy. The softmax's backward makes grad · output for a
    moment (SoftMax.cu, softmax_backward_cuda_out).
    """
    if heads.float_scores:
        q, k = tape.cast(q, 32), tape.cast(k, 32)
    wide = (q, k)
    q, k, v = _operands(tape, setting, q, k, v, heads)
    tape.core = True
    area = setting.tokens * setting.keys * heads.heads
    scores = tape.op("attn.scores", q, k, elements=area, saves=(q, k))
    biased = _falcon_alibi(tape, scores) if heads.float_logits else _biased(tape, scores, heads)
    probs = _probabilities(tape, setting, biased, heads)
    if heads.in_place:
        tape.hold(scores)
    probs = maybe_dropout(tape, setting, tape.cast(probs, v.bits), heads.dropout)
    tape.returned.append(probs)
    size = setting.tokens * (heads.heads * heads.value_dim)
    if not (setting.training or heads.grouped or heads.cached):
        v = tape.op("attn.v_contiguous", v)
    out = tape.op("attn.mixed", probs, v, elements=size, saves=(probs, v))
    tape.core = False
    contiguous = tape.op("attn.out", out)
    tape.hold(out, probs, *([biased] if heads.float_bias else []))
    if not setting.training:  # the repeated ones, and those in fp32, have the names
        repeated = (k, v) if heads.grouped and not heads.broadcast else ()
        tape.hold(*repeated, *(wide if heads.float_scores else ()))
        tape.hold(*([q] if "query" in setting.names else []))
    return contiguous


def _operands(
    tape: Tape, setting: Setting, q: Value, k: Value, v: Value, heads: Heads
) -> tuple[Value, Value, Value]:
    """q, k and v as matmul wants them."""
    rows = setting.key_tokens * heads.heads
    q = q if heads.head_major else tape.op("attn.q_contiguous", q)
    if not (setting.training or heads.grouped):
        return q, k, v  # joined, and so contiguous: by a cache, or from latents
    k = tape.op("attn.k_contiguous", k, elements=rows * heads.head_dim)
    return q, k, tape.op("attn.v_contiguous", v, elements=rows * heads.value_dim)


def _biased(tape: Tape, scores: Value, heads: Heads) -> Value:
    """Scores times the scale, capped (modeling_gemma2.py:225), plus the mask.

    `in_place`: the scale is part of the matmul (BloomAttention) or applied in place
    (FalconAttention), and the scores keep their name. `float_bias`: MPT adds a bias in fp32.
    """
    scaled = scores if heads.in_place else scale(tape, scores, "attn.scaled")
    if heads.softcap:
        divided = scale(tape, scaled, "attn.divided")
        capped = tape.op("attn.tanh", divided, save_out=True)
        scaled = scale(tape, capped, "attn.capped")
    if heads.float_bias:
        scaled = tape.op("attn.biased", scaled, bits=32)
    return tape.op("attn.masked", scaled, passes=True)


def _falcon_alibi(tape: Tape, scores: Value) -> Value:
    """Scores in fp32, plus ALiBi, plus the mask, all named (modeling_falcon.py:403), and cast to
    the activations' dtype for the softmax.
    """
    wide = tape.cast(scores, 32)
    logits = tape.op("attn.logits", wide, passes=True)
    masked = tape.op("attn.masked", logits, passes=True)
    narrow = tape.cast(masked, scores.bits)
    tape.hold(wide, logits, masked)
    return narrow


def _probabilities(tape: Tape, setting: Setting, scores: Value, heads: Heads) -> Value:
    """The softmax, mostly in fp32; with sinks over one more column, which is then cut off.

    For fp16 the kernel itself widens what it reads (torch 2.11 SoftMax.cpp, `half_to_float`).
    """
    bits = 32 if heads.float_softmax or heads.float_scores or setting.autocast else scores.bits
    if heads.sinks:
        return _with_sinks(tape, setting, scores, heads, bits)
    wide = scores if setting.half and scores.bits == 16 else tape.cast(scores, bits)
    work = scores.elements() * bits // 8
    probs = tape.op("attn.softmax", wide, bits=bits, save_out=True, back_temp=work)
    tape.hold(scores)
    return probs


def _with_sinks(tape: Tape, setting: Setting, scores: Value, heads: Heads, bits: int) -> Value:
    """cat([scores, sinks]), less the row's maximum, softmax, all but the last column
    (modeling_gpt_oss.py:251).
    """
    rows = setting.tokens * heads.heads
    sinks = tape.param("sinks", heads.heads, setting.weight_bits, grad=not setting.frozen)
    joined = tape.op("attn.joined", scores, sinks, elements=scores.elements() + rows)
    index = tape.value("attn.max_index", rows, 64, grad=False)
    less = tape.op("attn.less_max", joined, saves=(index,))
    tape.hold(scores)
    wide = tape.cast(less, bits)
    probs = tape.op("attn.softmax", wide, save_out=True, back_temp=wide.bytes)
    parts = [("attn.probs", scores.elements()), ("attn.sink_probs", rows)]
    return tape.split("attn.cut", probs, parts)[0]
