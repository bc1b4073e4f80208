"""Projections in 4 or 8 bits, in inference (bitsandbytes 0.50.2, on an NVIDIA card)."""

from __future__ import annotations

from ....ledger.num import EMPTY, Bytes, Num, ceil_div, choose, sized
from ....models.arch.blocks import Linear
from ...autograd.tape import Tape, Value
from .setting import BlockSetting

NF4, INT8 = "nf4", "int8"
BLOCK = 64  # elements that share a scale
FEW = 4  # most rows that a fused kernel multiplies by packed weights on every card
HOPPER_SMS = 132  # multiprocessors of an H100 or H200 SXM
SMALL = 4 * 1024**2  # a weight with fewer elements is small
TILE = 64  # outputs that one block of a kernel computes


def four_bits(tape: Tape, setting: BlockSetting, x: Value, layer: Linear) -> Value:
    """Linear4bit: the weight is unpacked for a matmul, but not for a few rows
    (backends/cuda/ops.py _dequant_linear_fallback). Packed scales are unpacked first, then their
    offset is added.
    """
    rows = x.elements() // layer.ins[1]
    work = unpacking_work(setting, rows, layer)
    y = tape.op(layer.name, x, elements=rows * layer.outs[1], temp=work)
    tape.hold(x)
    return y


def unpacking_work(setting: BlockSetting, rows: Num, layer: Linear) -> tuple[Bytes, ...]:
    """Bytes of the scales, of these with their mean, and of the unpacked weight of a matmul."""
    ins, outs = layer.ins[1], layer.outs[1]
    scales = sized(ceil_div(ins * outs, BLOCK) if setting.double_quant else 0, 32)
    few, unpacked = rows <= fused_rows(setting, ins, outs), sized(ins * outs, 16)
    return tuple(choose(few, EMPTY, size) for size in (scales, scales, unpacked))


def fused_rows(setting: BlockSetting, ins: int, outs: int) -> int:
    """The most rows that the fused 4-bit kernel takes (_gemm_4bit_use_custom_cuda).

    It was tuned card by card; modelled is Hopper, whose matmuls are fast. On other cards weights
    count as unpacked from 5 rows on, which is the most memory this can take.
    """
    if ins % BLOCK:
        return 0
    if not setting.hopper:
        return FEW
    blocks = ceil_div(outs, TILE)
    if ins * outs < SMALL:
        if ins * 2 < outs:
            return 512 if blocks * 3 < HOPPER_SMS else 320
        return 32 if blocks * 4 <= HOPPER_SMS else 16 if blocks * 2 <= HOPPER_SMS else FEW
    if blocks < HOPPER_SMS // 2 or (ins >= outs and blocks * 4 < HOPPER_SMS * 3):
        return FEW
    waves = min(blocks // HOPPER_SMS, 3)
    return (16, 32, 48, 64)[waves]


def eight_bits(tape: Tape, setting: BlockSetting, x: Value, layer: Linear) -> Value:
    """Linear8bitLt: x in fp16, searched for outliers, then in int8 with a scale per row; the
    product in int32, then in fp16, then in the dtype of x (autograd/_functions.py MatMul8bitLt,
    backends/cuda/ops.py int8_vectorwise_quant and int8_mm_dequant). No outliers are assumed: their
    columns would be multiplied a second time.
    """
    rows: Num = x.elements() // layer.ins[1]
    out = rows * layer.outs[1]
    half = x if setting.half else tape.op(f"{x.name}.half", x)
    scales = tape.op(f"{x.name}.scales", x, elements=rows, bits=32)
    codes = tape.op(f"{x.name}.codes", half, bits=8)
    size = tape.op(f"{x.name}.abs", half)
    outliers = tape.op(f"{x.name}.outliers", size, bits=8)
    tape.hold(half, outliers)
    product = tape.op(f"{layer.name}.int32", codes, elements=out, bits=32)
    y = tape.op(f"{layer.name}.half", product, bits=16)
    if not setting.half:
        narrow, y = y, tape.op(layer.name, y)
        tape.hold(narrow)
    tape.hold(product)
    tape.hold(x, scales, codes)
    return y
