"""softmax(q kᵀ) v in each kernel that torch may choose.

Line numbers refer to transformers 5.17.0 and torch 2.11. Workspaces were measured on an H200; each
expression holds at every size tried.
"""

from __future__ import annotations

from ....ledger.num import EMPTY, Bytes, Num, round_up, sized
from ...autograd.tape import ATTENTION, Tape, Value
from .attention_inputs import AttentionInputs, repeat_keys_and_values
from .eager_attention import eager
from .math_attention import math_path
from .setting import BlockSetting

FLASH = {"flash_attention_2": "flash", "flash_attention_3": "flash3"}  # kernel by the key's value
NO_FLASH_CARD = (
    "{}.attention='flash_attention_2' needs compute capability 8.0 or newer, and this GPU has {}; "
    "use 'sdpa'"
)


def prefers_cudnn(compute_capability: str) -> bool:
    """Whether torch tries cuDNN's attention first (sdp_utils.cpp, check_prefer_cudnn_attention)."""
    return compute_capability in ("9.0", "10.0")


def has_flash(compute_capability: str) -> bool:
    """Whether the card runs FlashAttention: Ampere and newer (sdp_utils.cpp,
    check_flash_attention_hardware_support).
    """
    return float(compute_capability) >= 8.0


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
