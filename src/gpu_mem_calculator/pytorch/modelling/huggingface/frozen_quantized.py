"""Frozen projections in 4 or 8 bits, in training (bitsandbytes 0.50.2, on an NVIDIA card)."""

from __future__ import annotations

from collections.abc import Callable

from ....ledger.num import Num, sized
from ....models.arch.blocks import Linear
from ...autograd.tape import Tape, Value
from .quantized import unpacking_work
from .setting import BlockSetting

Maker = Callable[[str, Num, int], Value]  # of a tensor that takes no gradient: name, elements, bits


def frozen_four_bits(tape: Tape, setting: BlockSetting, x: Value, layer: Linear, out: Num) -> Value:
    """Linear4bit: the matmul in its compute dtype, the result in the dtype of x, the weight
    unpacked in both directions.

    nn/modules.py:626-637 casts x and casts the result back; autograd/_functions.py MatMul4Bit saves
    the packed weight only. The weight is unpacked for more than a few rows (backends/cuda/ops.py
    _dequant_linear_fallback) and in backward (_functions.py, dequantize_4bit) to the dtype that it
    was packed from, then to the gradient's; packed scales are unpacked first, and their mean is
    added. Autocast casts the operands of a matmul in fp32.
    """
    count, wide = layer.ins[1] * layer.outs[1], setting.nf4_bits == 32
    operand, bits = tape.cast(x, setting.nf4_bits), 16 if setting.autocast else setting.nf4_bits
    work = unpacking_work(setting, operand.elements() // layer.ins[1], layer)
    if wide:
        work = (*work[:-1], 2 * work[-1])
    if wide and setting.autocast:
        work = (*work, sized(count, 16), sized(operand.elements(), 16))
    same = bits == setting.packed_bits
    back = (sized(count, setting.packed_bits), *(() if same else (sized(count, bits),)))
    y = tape.op(layer.name, operand, elements=out, bits=bits, temp=work, back_temp=back)
    tape.hold(x, operand)
    return tape.cast(y, x.bits)


def frozen_eight_bits(
    tape: Tape, setting: BlockSetting, x: Value, layer: Linear, out: Num, outliers: float
) -> Value:
    """Linear8bitLt: x is quantized row by row, and saved unquantized.

    autograd/_functions.py MatMul8bitLt. `ctx.tensors` names x and its columns with outliers, so
    they are freed with the graph, and a checkpoint does not see them. Backward unpacks the weight
    to the dtype of x. The matmul of outliers is an addmm, which autocast runs in 16 bits
    (backends/default/ops.py int8_mixed_scaled_mm).
    """
    columns = round(layer.ins[1] * outliers) if setting.int8_threshold else 0
    bits = 16 if columns and setting.autocast else x.bits
    rows, part = x.elements() // layer.ins[1], columns * layer.outs[1]
    detached = tape.value(f"{layer.name}.detached", 0, x.bits, grad=False)

    def make(name: str, elements: Num, width: int) -> Value:
        return tape.op(f"{layer.name}.{name}", detached, elements=elements, bits=width)

    quantized = _quantize(tape, setting, x, rows, make)
    named, saved = [*quantized], [x]
    if columns:
        saved.append(make("outliers", rows * columns, x.bits))
        named.append(_unpack_columns(tape, part, x.bits, make))
    if x.grad:
        for value in saved:
            tape.pin(value)
    product = make("int32", out, 32)
    narrow = [make("fp16", out, 16)] if columns or not _is_half(setting, x) else []
    if columns:
        named.append(make("int8_part", out, x.bits))
        tape.hold(product, *narrow)
        if setting.autocast and x.bits == 32:  # last to first
            named += [make(f"cast{i}", n, 16) for i, n in enumerate((part, rows * columns, out))]
    weight = sized(layer.ins[1] * layer.outs[1], x.bits) + sized(layer.outs[1], 32)
    gradient = (sized(out, x.bits),) if bits != x.bits else ()
    work = (weight, *gradient)
    y = tape.op(layer.name, x, elements=out, bits=bits, saves=saved, back_temp=work)
    tape.hold(*named, *(() if columns else (product, *narrow)))
    return y


def _is_half(setting: BlockSetting, x: Value) -> bool:
    return setting.half and x.bits == 16


def _quantize(
    tape: Tape, setting: BlockSetting, x: Value, rows: Num, make: Maker
) -> tuple[Value, Value]:
    """x in fp16, then the scale of each row and x in int8, which it returns; and with a threshold
    its absolute values and which of them are outliers (backends/cuda/ops.py int8_vectorwise_quant).
    """
    count = x.elements()
    half = [] if _is_half(setting, x) else [make("half", count, 16)]
    scales, codes = make("scales", rows, 32), make("codes", count, 8)
    if setting.int8_threshold:
        sizes = make("abs", count, 16)
        flags = tape.op(f"{sizes.name}.flags", sizes, bits=8)
        tape.hold(flags)
    tape.hold(*half)
    return scales, codes


def _unpack_columns(tape: Tape, part: Num, bits: int, make: Maker) -> Value:
    """The weight's columns for outliers: in int8, twice in fp32 (_ops.py int8_vectorwise_dequant),
    and in the dtype of x, which it returns.
    """
    packed, first = make("columns", part, 8), make("columns.scaled", part, 32)
    second = make("columns.unpacked", part, 32)
    tape.hold(packed, first)
    return tape.cast(second, bits)
