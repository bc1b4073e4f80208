"""softmax(q kᵀ) v in each kernel that torch may choose.

Line numbers refer to transformers 5.17.0 and torch 2.11. Workspaces were measured on an H200 and
are given by the same expression at every size tried.
"""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from ...ledger.num import Num, choose, holds, round_up
from .attention_inputs import AttentionInputs, repeated
from .eager_attention import eager
from .ops import maybe_dropout, scale
from .setting import BlockSetting


def kernel(setting: BlockSetting, heads: AttentionInputs) -> str:
    """The kernel that runs on an NVIDIA card: torch's SDPA choice, or what was asked for.

    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: compute capability 9.0 and 10.0 prefer
    cuDNN (check_prefer_cudnn_attention), which takes masks and values of another head size.
    Elsewhere flash wants 16 bits, one head size of at most 256 and no mask, and the
    memory-efficient kernel takes the rest. Fewer key-value heads without `enable_gqa` are left to
    the math path, and so is fp32 with `enable_gqa`, which transformers passes where there is no
    mask (integrations/sdpa_attention.py:28).
    """
    if setting.attention == "eager" or not heads.sdpa:
        return "eager"
    if setting.attention == "flash_attention_2":
        return "flash"
    if heads.broadcast and heads.grouped:
        return "math"
    same = heads.head_dim == heads.value_dim and heads.head_dim <= 256
    if setting.matmul_bits == 16 and heads.head_dim <= 256:
        if setting.cudnn:
            return "cudnn"
        if same and not heads.masked:
            return "flash"
    if heads.grouped and not heads.masked and same:
        return "math"
    return "efficient"


def attend(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """Attention in the kernel that runs; (batch, seq, heads, value_dim) comes out."""
    name = kernel(setting, heads)
    if name == "eager":
        return eager(tape, setting, q, k, v, heads)
    if name == "efficient" or (name == "cudnn" and heads.masked):
        k, v = repeated(tape, setting, k, v, heads)  # before autocast's cast
    left, right, value = (tape.cast(x, setting.matmul_bits) for x in (q, k, v))
    out = KERNELS[name](tape, setting, left, right, value, heads)
    if setting.training:
        tape.hold(k, v)
    return out


def _out_elements(setting: BlockSetting, heads: AttentionInputs) -> Num:
    return setting.tokens * (heads.heads * heads.value_dim)


def _fused(
    tape: Tape, setting: BlockSetting, values: tuple[Value, Value, Value], heads: AttentionInputs,
    rows: Num, saves: list[Value], work: tuple[Num, ...], lse_name: str = "attn.logsumexp",
) -> Value:  # fmt: skip
    """A fused kernel: keeps q, k, v, the output and one fp32 log-sum-exp a row and head."""
    lse = tape.value(lse_name, rows, 32, grad=False)
    return tape.op(
        "attn.out", *values, elements=_out_elements(setting, heads),
        saves=(*values, *saves, lse), save_out=True, back_temp=work, inside=True,
    )  # fmt: skip


def _token_by_token(tape: Tape, out: Value, heads: AttentionInputs) -> Value:
    """The output has q's layout: where that is head by head, transformers copies it
    (`transpose(1, 2).contiguous()`, integrations/sdpa_attention.py:169).
    """
    return tape.op("attn.contiguous", out) if heads.head_major else out


def _own_mask(
    tape: Tape, setting: BlockSetting, q: Value, heads: AttentionInputs, width: Num
) -> list[Value]:
    """The additive mask that SDPA makes from a boolean one, for this call alone
    (attention.cpp convert_boolean_attn_mask); of one with a row for every head (ALiBi), the copy
    that autocast makes.
    """
    if heads.masked and not heads.own_mask and setting.bits != q.bits:
        area = setting.tokens * heads.heads * setting.seq
        return [tape.value("attn.mask", area, q.bits, grad=False)]
    if not (heads.masked and heads.own_mask):
        return []
    return [tape.value("attn.mask", setting.batch * setting.seq * width, q.bits, grad=False)]


def _cudnn(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """cuDNN's attention. Backward holds an fp32 dq, a row sum, 256 bytes, and with grouped heads
    dk and dv for every query head (measured on an H200, cuDNN of torch 2.11+cu130).
    """
    rows = setting.tokens * heads.heads
    spread = 2 * q.bytes if heads.grouped and not heads.masked else 0
    work = (rows * (4 * heads.head_dim + 4) + 256 + spread,)  # one workspace
    mask = _own_mask(tape, setting, q, heads, setting.keys)
    return _token_by_token(tape, _fused(tape, setting, (q, k, v), heads, rows, mask, work), heads)


def _flash(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """FlashAttention-2: backward holds an fp32 accumulator for dq (rows rounded up to 128, head
    size to 32), a row sum, and with grouped heads dk and dv for every query head: flash_api.cpp,
    mha_bwd. Forward makes its log-sum-exp whether or not there is a backward (mha_fwd); what it
    splits one token's keys into, a few MiB at most, is left out.
    """
    padded = setting.batch * round_up(setting.seq, 128) * heads.heads
    spread = (q.bytes, q.bytes) if heads.grouped else ()
    work = (padded * 4 * round_up(heads.head_dim, 32), padded * 4, *spread)
    rows = setting.tokens * heads.heads
    name = "attn.logsumexp" if setting.training else "attn.rows"
    out = _fused(tape, setting, (q, k, v), heads, rows, [], work, name)
    return _token_by_token(tape, out, heads)


def _efficient(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """The memory-efficient kernel. Its output is token by token whatever q is.

    Backward has one fp32 number a row; in fp32 that is made outside the kernel, from grad · out
    (attention_backward.cu, kKernelComputesDelta), which holds the product and the sums twice.
    """
    rows = setting.batch * round_up(setting.seq, 32) * heads.heads
    work: tuple[Num, ...] = (rows * 4,)
    if q.bits == 32:
        work = (rows * 4, rows * 4, _out_elements(setting, heads) * 4)
    mask = _own_mask(tape, setting, q, heads, round_up(setting.keys, 8))
    return _fused(tape, setting, (q, k, v), heads, rows, mask, work)


def _math(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """torch's reference path: every s × s map in full, and in fp32 whatever comes in
    (attention.cpp, _scaled_dot_product_attention_math). The softmax looks for rows without a key,
    which takes a boolean map (_safe_softmax).

    With `enable_gqa` keys and values are repeated first, a single one too (repeat_interleave
    always copies); else each matmul spreads its own over the heads (`broadcast`).
    """
    bits, late = q.bits, heads.broadcast
    q, k, v = (tape.cast(x, 32) for x in (q, k, v))
    named = [q, k, v, *_named_mask(tape, setting, heads, bits)]
    rows = setting.key_tokens * heads.heads
    if heads.grouped and not late:
        k = tape.op("attn.k_repeated", k, elements=rows * heads.head_dim)
        v = tape.op("attn.v_repeated", v, elements=rows * heads.value_dim)
    named += [] if setting.training else [k, v]
    q, k = scale(tape, q, "attn.q_scaled"), scale(tape, k, "attn.k_scaled")
    named += [] if setting.training or late else [q]
    if late:
        named.append(_copied_query(tape, setting, q))
        k = _spread(tape, setting, k, rows * heads.head_dim)
    tape.core = True
    area = setting.tokens * setting.keys * heads.heads
    work = q.bytes - k.bytes if late else 0  # the gradient of a spread view is as large as q
    scores = tape.op("attn.scores", q, k, elements=area, saves=(q, k), back_temp=work,
                     product=True)  # fmt: skip
    probs = tape.op(  # a mask is added in place
        "attn.softmax",
        scores,
        save_out=True,
        temp=area,
        back_temp=scores.bytes,
        inside=True,
    )
    probs = maybe_dropout(tape, setting, probs, heads.dropout)
    if late:
        v = _spread(tape, setting, v, rows * heads.value_dim)
    out = tape.op("attn.mixed", probs, v, elements=_out_elements(setting, heads),
                  saves=(probs, v), back_temp=work, product=True)  # fmt: skip
    tape.core = False
    tape.hold(*named)
    return tape.op("attn.out", tape.cast(out, bits))


def _spread(tape: Tape, setting: BlockSetting, x: Value, elements: Num) -> Value:
    """Keys or values for every query head, copied where batch and heads do not merge: with one
    sequence they are a view.
    """
    size = choose(setting.batch > 1, elements, x.elements())
    return tape.op(f"{x.name}.spread", x, elements=size)


def _copied_query(tape: Tape, setting: BlockSetting, q: Value) -> Value:
    """The scaled q, named beside its copy for the matmul; with one sequence there is no copy."""
    source = tape.value("attn.q_source", 0, q.bits, grad=False)
    return tape.op("attn.q_named", source, elements=q.elements() * holds(setting.batch > 1))


def _named_mask(
    tape: Tape, setting: BlockSetting, heads: AttentionInputs, bits: int
) -> list[Value]:
    """The mask in numbers, added to the scores and not kept: from a boolean one, or from
    `is_causal` (attention.cpp, ones().tril()), but not where an additive one is given.
    """
    causal = not (heads.masked or setting.decoding)
    if not (causal or (heads.masked and heads.own_mask)):
        return []
    bits = 32 if causal or setting.training else bits  # as q came in, or as it is now
    source = tape.value("attn.mask_source", 0, bits, grad=False)
    rows = setting.seq if causal or setting.training else setting.tokens
    return [tape.op("attn.mask", source, elements=rows * setting.keys)]


KERNELS = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}
