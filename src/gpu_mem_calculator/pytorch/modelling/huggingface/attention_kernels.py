"""softmax(q kᵀ) v in each kernel that torch may choose, and in its reference path, which has none.

Line numbers refer to transformers 5.17.0 and torch 2.11. Workspaces were measured on an H200; each
expression holds at every size tried.
"""

from __future__ import annotations

from ....ledger.num import EMPTY, Bytes, Num, choose, holds, round_up, sized
from ...autograd.tape import ATTENTION, Tape, Value
from .attention_inputs import AttentionInputs, repeat_keys_and_values
from .flash import FLASH
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


def kernel(setting: BlockSetting, heads: AttentionInputs) -> str:
    """The kernel that runs on an NVIDIA card: torch's SDPA choice, or what `attention` names.

    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: cuDNN, where it is preferred, takes masks
    and values of another head size. Elsewhere flash needs 16 bits, one head size of at most 256 and
    no mask, and the memory-efficient kernel takes the rest, but for bf16 on cards without flash.
    Fewer key-value heads without `enable_gqa` take the math path, and so does what flash does not
    take with `enable_gqa`, which transformers passes where there is no mask
    (integrations/sdpa_attention.py:28).
    """
    if setting.attention == "eager" or not heads.sdpa:
        return "eager"
    if setting.attention in FLASH:
        return FLASH[setting.attention]
    if heads.broadcast and heads.grouped:
        return "math"
    one_size = heads.head_dim == heads.value_dim and heads.head_dim <= 256
    if setting.matmul_bits == 16 and heads.head_dim <= 256:
        if setting.cudnn:
            return "cudnn"
        if setting.flash and one_size and not heads.masked:
            return "flash"
    if setting.quirks.cudnn_first:
        return "math"
    if setting.matmul_bits == 16 and not (setting.flash or setting.half):
        return "math"
    if heads.grouped and not heads.masked and one_size:
        return "math"
    return "efficient"


def repeats_heads(name: str, heads: AttentionInputs) -> bool:
    """Whether k and v are copied for every query head before a fused kernel."""
    return heads.grouped and (name == "efficient" or (name == "cudnn" and heads.masked))


def attend(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """Record attention in the kernel that runs; returns its (batch, seq, heads, value_dim)."""
    name = kernel(setting, heads)
    if name == "eager":
        from .eager_attention import eager

        return eager(tape, setting, q, k, v, heads)
    if repeats_heads(name, heads):
        k, v = repeat_keys_and_values(tape, setting, k, v, heads)  # before autocast's cast
    value, key, query = (tape.cast(x, setting.matmul_bits) for x in (v, k, q))  # last to first
    out = KERNELS[name](tape, setting, query, key, value, heads)
    if setting.training:
        tape.hold(k, v)
    return out


def _out_elements(setting: BlockSetting, heads: AttentionInputs) -> Num:
    return setting.tokens * (heads.heads * heads.value_dim)


def _fused(
    tape: Tape,
    setting: BlockSetting,
    qkv: tuple[Value, Value, Value],
    heads: AttentionInputs,
    rows: Num,
    mask: list[Value],
    work: tuple[Bytes, ...],
    lse_name: str = "attn.logsumexp",
) -> Value:
    """A fused kernel: it saves q, k, v, the mask, the output and one fp32 log-sum-exp for each of
    `rows`, which are those of all heads. `work`: bytes of workspace in backward.
    """
    lse = tape.value(lse_name, rows, 32, grad=False)
    return tape.op(
        "attn.out",
        *qkv,
        elements=_out_elements(setting, heads),
        saves=(*qkv, *mask, lse),
        save_out=True,
        back_temp=work,
        inside=True,
        kernel=ATTENTION if setting.attention == "sdpa" else "",  # torch's own operation
    )


def _token_major(tape: Tape, out: Value, heads: AttentionInputs) -> Value:
    """The output stored token by token. It has q's layout: where that is head by head, transformers
    copies it (`transpose(1, 2).contiguous()`, integrations/sdpa_attention.py:169).
    """
    return tape.op("attn.contiguous", out) if heads.head_major else out


def _own_mask(
    tape: Tape, setting: BlockSetting, q: Value, heads: AttentionInputs, width: Num
) -> list[Value]:
    """The additive mask that SDPA makes from a boolean one for this call alone
    (attention.cpp convert_boolean_attn_mask); for a mask with a row for every head (ALiBi), the
    copy that autocast makes.
    """
    if setting.compiled:
        return []  # all layers share one
    if heads.masked and not heads.own_mask and setting.bits != q.bits:
        area = setting.tokens * heads.heads * setting.seq
        return [tape.value("attn.mask", area, q.bits, grad=False)]
    if not (heads.masked and heads.own_mask):
        return []
    return [tape.value("attn.mask", setting.batch * setting.seq * width, q.bits, grad=False)]


def _cudnn(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """cuDNN's attention. Backward's workspace has an fp32 dq, a row sum, 256 bytes, and with
    grouped heads dk and dv for every query head (measured on an H200, cuDNN of torch 2.11+cu130).
    """
    rows = setting.tokens * heads.heads
    dk_dv = 2 * q.bytes if heads.grouped and not heads.masked else EMPTY
    work = (sized(rows * (heads.head_dim + 1) + 64, 32) + dk_dv,)  # one workspace
    mask = _own_mask(tape, setting, q, heads, setting.keys)
    return _token_major(tape, _fused(tape, setting, (q, k, v), heads, rows, mask, work), heads)


def flash_head_size(head_dim: int) -> int:
    """The elements of a head in FlashAttention's accumulator (flash_api.cpp, head_size_rounded)."""
    return int(round_up(head_dim, 32 if head_dim <= 128 else 64))


def _flash(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """FlashAttention-2. Backward's workspace has an fp32 accumulator for dq (rows rounded up to
    128, head size to 32, above 128 to 64), a row sum, and with grouped heads dk and dv for every
    query head: flash_api.cpp, mha_bwd. Forward makes its log-sum-exp even without a backward
    (mha_fwd); the partial results of one token's split keys, a few MiB at most, are left out.
    """
    padded = setting.batch * round_up(setting.seq, 128) * heads.heads
    dk_dv = (q.bytes, q.bytes) if heads.grouped else ()
    size = flash_head_size(heads.head_dim)
    work = (sized(padded * size, 32), sized(padded, 32), *dk_dv)
    rows = setting.tokens * heads.heads
    name = "attn.logsumexp" if setting.training else "attn.rows"
    out = _fused(tape, setting, (q, k, v), heads, rows, [], work, name)
    return _token_major(tape, out, heads)


def _flash3(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """FlashAttention-3. Backward's workspace, with rows rounded up to a tile: two row sums, an fp32
    dq, and with grouped heads an fp32 dk and dv (flash-attn 0251105 hopper/flash_api.cpp mha_bwd,
    causal, on Hopper).
    """
    size = next(n for n in (64, 96, 128, 192, 256) if heads.head_dim <= n)
    tile, key_tile = 128 if size == 64 else 64, {192: 96, 256: 80}.get(size, 128)
    rows = setting.batch * heads.heads * round_up(setting.seq, tile)
    key_rows = setting.batch * heads.kv_heads * round_up(setting.keys, key_tile)
    dk_dv = (sized(key_rows * size, 32),) * 2 if heads.grouped else ()
    work = (sized(rows, 32), sized(rows, 32), sized(rows * size, 32), *dk_dv)
    out = _fused(tape, setting, (q, k, v), heads, setting.tokens * heads.heads, [], work)
    return _token_major(tape, out, heads)


def _efficient(
    tape: Tape, setting: BlockSetting, q: Value, k: Value, v: Value, heads: AttentionInputs
) -> Value:
    """The memory-efficient kernel. Its output is stored token by token in any case.

    Backward has one fp32 number per row; for fp32 inputs that is computed outside the kernel, from
    grad · out (attention_backward.cu, kKernelComputesDelta), with workspace for the product and
    twice the sums.
    """
    rows = setting.batch * round_up(setting.seq, 32) * heads.heads
    work: tuple[Bytes, ...] = (sized(rows, 32),)
    if q.bits == 32:
        work = (*work, *work, sized(_out_elements(setting, heads), 32))
    mask = _own_mask(tape, setting, q, heads, round_up(setting.keys, 8))
    return _fused(tape, setting, (q, k, v), heads, rows, mask, work)


KERNELS = {
    "cudnn": _cudnn,
    "flash": _flash,
    "flash3": _flash3,
    "efficient": _efficient,
    "math": math_path,
}
