"""Attention as transformers 5.17 calls it, in each kernel that torch may choose."""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import Num, round_up
from ...model.blocks import Attention, LatentAttention
from ..tape import Tape, Value
from .norms import norm
from .ops import Setting, add, linear, maybe_dropout, scale


class Heads(Struct, frozen=True):
    """The sizes of one attention call."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    masked: bool  # a mask tensor is passed, so flash is out of the question
    dropout: float = 0.0
    sdpa: bool = True
    float_softmax: bool = True
    head_major: bool = False  # q was made by a concatenation, head by head

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key-value head."""
        return self.heads != self.kv_heads


def kernel(setting: Setting, heads: Heads) -> str:
    """The kernel that runs on an NVIDIA card: torch's SDPA choice, or what was asked for.

    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: flash wants 16 bits, one head size of
    at most 256 and no mask; the memory-efficient kernel takes the rest, but not grouped heads
    (transformers then repeats keys and values, unless it passed `enable_gqa`), which is why fp32
    with grouped heads falls to the math path.
    """
    if setting.attention == "eager" or not heads.sdpa:
        return "eager"
    same = heads.head_dim == heads.value_dim and heads.head_dim <= 256
    if setting.attention == "flash_attention_2":
        return "flash"
    if setting.matmul_bits == 16 and same and not heads.masked:
        return "flash"
    if heads.grouped and not heads.masked and same:
        return "math"
    return "efficient"


def attend(tape: Tape, setting: Setting, q: Value, k: Value, v: Value, heads: Heads) -> Value:
    """softmax(q kᵀ) v in the kernel that runs; (batch, seq, heads, value_dim) comes out."""
    bits = setting.matmul_bits
    q, k, v = (tape.cast(x, bits) for x in (q, k, v))
    return KERNELS[kernel(setting, heads)](tape, setting, q, k, v, heads)


def _out_elements(setting: Setting, heads: Heads) -> Num:
    return setting.tokens * (heads.heads * heads.value_dim)


def _flash(tape: Tape, setting: Setting, q: Value, k: Value, v: Value, heads: Heads) -> Value:
    """FlashAttention-2: keeps q, k, v, the output and one fp32 log-sum-exp a row and head.

    The output has q's layout: where that is head by head, transformers copies it token by token.
    Backward holds an fp32 accumulator for dq (rows rounded up to 128, head size to 32), a row
    sum, and with grouped heads dk and dv for every query head: flash_api.cpp, mha_bwd.
    """
    rows = setting.batch * round_up(setting.seq, 128) * heads.heads
    width = round_up(heads.head_dim, 32)
    lse = tape.value("attn.logsumexp", setting.tokens * heads.heads, 32, grad=False)
    expanded = 2 * q.bytes if heads.grouped else 0
    out = tape.op(
        "attn.out", q, k, v, elements=_out_elements(setting, heads),
        saves=(q, k, v, lse), save_out=True, back_temp=rows * 4 + rows * width * 4 + expanded,
    )  # fmt: skip
    return tape.op("attn.contiguous", out) if heads.head_major else out


def _efficient(tape: Tape, setting: Setting, q: Value, k: Value, v: Value, heads: Heads) -> Value:
    """The memory-efficient kernel: as flash, plus the float mask made from a boolean one.

    Grouped heads are repeated first (transformers integrations/sdpa_attention.py:repeat_kv).
    """
    if heads.grouped:
        k = tape.op("attn.k_repeated", k, elements=setting.tokens * heads.heads * heads.head_dim)
        v = tape.op("attn.v_repeated", v, elements=setting.tokens * heads.heads * heads.value_dim)
    saves = [q, k, v]
    if heads.masked:
        area = setting.batch * setting.seq * round_up(setting.seq, 8)
        saves.append(tape.value("attn.mask", area, q.bits, grad=False))
    rows = setting.batch * round_up(setting.seq, 32) * heads.heads
    saves.append(tape.value("attn.logsumexp", rows, 32, grad=False))
    return tape.op(
        "attn.out", q, k, v, elements=_out_elements(setting, heads), saves=saves, save_out=True,
        back_temp=rows * 4,
    )  # fmt: skip


def _scores(tape: Tape, setting: Setting, q: Value, k: Value, heads: Heads) -> Value:
    area = setting.batch * setting.seq * setting.seq * heads.heads
    return tape.op("attn.scores", q, k, elements=area, saves=(q, k))


def _math(tape: Tape, setting: Setting, q: Value, k: Value, v: Value, heads: Heads) -> Value:
    """torch's reference path: every s × s map in full (attention.cpp, _attention_math)."""
    if heads.grouped:
        k = tape.op("attn.k_repeated", k, elements=setting.tokens * heads.heads * heads.head_dim)
        v = tape.op("attn.v_repeated", v, elements=setting.tokens * heads.heads * heads.value_dim)
    q, k = scale(tape, q, "attn.q_scaled"), scale(tape, k, "attn.k_scaled")
    tape.core = True
    biased = tape.op("attn.biased", _scores(tape, setting, q, k, heads), passes=True)
    probs = tape.op("attn.softmax", biased, save_out=True, back_temp=biased.bytes)
    probs = maybe_dropout(tape, setting, probs, heads.dropout)
    out = tape.op("attn.mixed", probs, v, elements=_out_elements(setting, heads), saves=(probs, v))
    tape.core = False
    return tape.op("attn.out", out)


def _eager(tape: Tape, setting: Setting, q: Value, k: Value, v: Value, heads: Heads) -> Value:
    """transformers' eager attention (modeling_llama.py:191): the softmax is mostly in fp32.

    Its backward makes grad · output for a moment (SoftMax.cu, softmax_backward_cuda_out).
    matmul copies operands whose batch and head dimensions cannot be merged.
    """
    if heads.grouped:
        k = tape.op("attn.k_repeated", k, elements=setting.tokens * heads.heads * heads.head_dim)
        v = tape.op("attn.v_repeated", v, elements=setting.tokens * heads.heads * heads.value_dim)
    else:
        k, v = tape.op("attn.k_contiguous", k), tape.op("attn.v_contiguous", v)
    q = tape.op("attn.q_contiguous", q)
    tape.core = True
    scaled = scale(tape, _scores(tape, setting, q, k, heads), "attn.scaled")
    masked = tape.op("attn.masked", scaled, passes=True)
    bits = 32 if heads.float_softmax or setting.autocast else masked.bits
    wide = masked.elements() * bits // 8
    probs = tape.op(
        "attn.softmax", masked, bits=bits, save_out=True, back_temp=wide,
        temp=wide if masked.bits < bits else 0,
    )  # fmt: skip
    probs = tape.cast(probs, masked.bits)
    probs = maybe_dropout(tape, setting, probs, heads.dropout)
    out = tape.op("attn.mixed", probs, v, elements=_out_elements(setting, heads), saves=(probs, v))
    contiguous = tape.op("attn.out", out)
    tape.hold(out, probs)
    tape.core = False
    return contiguous


KERNELS = {"flash": _flash, "efficient": _efficient, "math": _math, "eager": _eager}


def rotate(tape: Tape, setting: Setting, x: Value, fraction: tuple[int, int]) -> Value:
    """x · cos + rotate_half(x) · sin on `fraction` of each head; keeps nothing but the tables.

    Under autocast the tables are in the activations' dtype, so the result is too.
    """
    part, whole = fraction
    bits = max(x.bits, setting.bits)
    size = x.elements() if part == whole else x.elements() * part // whole
    left = tape.op("rotary.cos", x, elements=size, bits=bits)
    half = tape.op("rotary.half", x, elements=size, temp=size * x.bits // 16)
    right = tape.op("rotary.sin", half, bits=bits)
    turned = add(tape, left, right, "rotary")
    if part == whole:
        return turned
    return tape.op("rotary.joined", turned, x, elements=x.elements(), bits=bits)


def attention(
    tape: Tape, setting: Setting, x: Value, block: Attention, *, masked: bool = False
) -> Value:
    """Projections, norms on q and k, rotary embedding, the kernel, the output projection."""
    projected = [linear(tape, setting, x, layer) for layer in block.inputs]
    value_dim = block.value_dim or block.head_dim
    if len(projected) == 1:  # fused: q, k and v are views of one tensor
        sizes = zip("qkv", (block.heads, block.kv_heads, block.kv_heads), strict=True)
        q, k, v = tape.split(
            "attn.split",
            projected[0],
            [(f"attn.{name}", setting.tokens * (n * block.head_dim)) for name, n in sizes],
        )
    else:
        q, k, v = projected
    if len(block.norms) == 2:
        q, k = norm(tape, setting, q, block.norms[0]), norm(tape, setting, k, block.norms[1])
    if block.rotary_dim:
        fraction = (block.rotary_dim, block.head_dim)
        q, k = rotate(tape, setting, q, fraction), rotate(tape, setting, k, fraction)
    heads = Heads(
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_dim=block.head_dim,
        value_dim=value_dim,
        masked=masked or block.alibi,
        dropout=block.dropout,
        sdpa=block.sdpa,
        float_softmax=block.float_softmax,
        head_major=0 < block.rotary_dim < block.head_dim,
    )
    mixed = attend(tape, setting, q, k, v, heads)
    out = linear(tape, setting, mixed, block.output)
    return maybe_dropout(tape, setting, out, block.residual_dropout)


def latent_attention(
    tape: Tape, setting: Setting, x: Value, block: LatentAttention, *, masked: bool = False
) -> Value:
    """DeepSeek's MLA as transformers trains it: keys and values are made in full.

    models/deepseek_v3/modeling_deepseek_v3.py: q and k are concatenations of a part without and
    a part with rotary embedding; their head size differs from the values', which rules out flash.
    """
    tokens = setting.tokens
    q = linear(tape, setting, x, block.query[0])
    if block.query_norm is not None:
        q = linear(tape, setting, norm(tape, setting, q, block.query_norm), block.query[1])
    latent = linear(tape, setting, x, block.kv_a)
    kv, rope = tape.split(
        "mla.split", latent,
        [("mla.latent", tokens * block.kv_rank), ("mla.k_rope", tokens * block.rope_dim)],
    )  # fmt: skip
    kv = linear(tape, setting, norm(tape, setting, kv, block.kv_norm), block.kv_b)
    per_head = tokens * block.heads
    q_nope, q_rope = tape.split(
        "mla.q_split", q,
        [("mla.q_nope", per_head * block.nope_dim), ("mla.q_rope", per_head * block.rope_dim)],
    )  # fmt: skip
    k_nope, value = tape.split(
        "mla.kv_split", kv,
        [("mla.k_nope", per_head * block.nope_dim), ("mla.value", per_head * block.value_dim)],
    )  # fmt: skip
    q_rope = rotate(tape, setting, q_rope, (1, 1))
    k_rope = rotate(tape, setting, rope, (1, 1))
    width = block.nope_dim + block.rope_dim
    query = tape.op("mla.query", q_nope, q_rope, elements=per_head * width)
    key = tape.op("mla.key", k_nope, k_rope, elements=per_head * width)
    heads = Heads(block.heads, block.heads, width, block.value_dim, masked, block.dropout)
    mixed = attend(tape, setting, query, key, value, heads)
    return linear(tape, setting, mixed, block.output)
