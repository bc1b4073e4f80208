"""Linear layers: trained, frozen, quantized, or with an adapter.

Line numbers refer to transformers 5.17.0 and torch 2.11. Autocast follows torch's CUDA lists
(aten/src/ATen/autocast_mode.h): matmuls and attention run in 16 bits, softmax and sums in fp32;
weights are cast once per forward and kept, activations are cast at every use. The arguments of a
call are cast last to first (autocast_mode.h WrapFunction_: the casts are arguments of one C++ call,
which GCC evaluates from the right on x86-64).
"""

from __future__ import annotations

from ...autograd.reductions import row_sum_workspace
from ...autograd.tape import MM, Tape, Value
from ...ledger.num import EMPTY, Bytes, Num, larger, sized
from ...model.blocks import Linear
from .adapters import add_adapter
from .quantized import NF4, eight_bits, four_bits
from .setting import BlockSetting


def linear(tape: Tape, setting: BlockSetting, x: Value, layer: Linear) -> Value:
    """Record torch.nn.Linear or GPT-2's Conv1D, with its adapter where there is one."""
    rows = x.elements() // layer.ins[1]
    if setting.quantization is not None and not setting.training:
        return (four_bits if setting.quantization == NF4 else eight_bits)(tape, setting, x, layer)
    if setting.frozen:
        y = _frozen_linear(tape, setting, x, layer, rows * layer.outs[1])
    else:
        y = _trained_linear(tape, setting, x, layer, rows)
    adapter = setting.adapter
    if adapter is not None and layer.name.rpartition(".")[2] in adapter.targets:
        y = add_adapter(tape, setting, x, y, layer, adapter)
    return y


def _trained_linear(tape: Tape, setting: BlockSetting, x: Value, layer: Linear, rows: Num) -> Value:
    """A linear layer whose weight takes a gradient."""
    out, bits = rows * layer.outs[1], setting.matmul_bits
    work: Bytes | None = None
    bias: list[Value] = []
    if layer.bias:
        bias.append(_weight(tape, setting, f"{layer.name}.bias", layer.bias_numel))
        work = row_sum_workspace(rows, layer.outs[1])
    weight = _weight(tape, setting, layer.name, layer.numel)
    x16 = tape.cast(x, bits)
    # a bias is the first argument of addmm, so its gradient is accumulated first
    ins = [x16, weight, *bias] if setting.autocast else [x16, *bias, weight]
    own = setting.own_linear and not layer.transposed
    y = tape.op(
        layer.name,
        *ins,
        elements=out,
        bits=bits,
        saves=(x16, weight),
        back_temp=EMPTY if work is None else work,
        settle=work,
        views=not own,  # the matmul has two dimensions, x has three
        inputs_first=own or layer.bias,
        saves_late=own,
        matmul=True,
        kernel="" if layer.bias else MM,  # with a bias it is addmm
    )
    if x16 is not x:
        tape.hold(x)  # an argument lives until the call returns
    return y


def _weight(tape: Tape, setting: BlockSetting, name: str, elements: Num) -> Value:
    """A weight, cast to the matmul's dtype under autocast."""
    weight = tape.param(f"{name}.weight", elements, setting.weight_bits, grad=not setting.frozen)
    return tape.cast(weight, setting.matmul_bits)


def _frozen_linear(tape: Tape, setting: BlockSetting, x: Value, layer: Linear, out: Num) -> Value:
    """A linear layer whose weight takes no gradient: its input is not saved.

    Autocast caches only casts of leaves that take gradients (torch 2.11 autocast_mode.cpp
    cached_cast), so a frozen fp32 weight is cast at each use, and that copy is saved for backward.
    """
    if setting.quantization == "nf4":
        return _four_bit(tape, setting, x, layer, out)
    if setting.quantization == "int8":
        return _eight_bit(tape, x, layer, out)
    bits = setting.matmul_bits
    weight = _weight(tape, setting, layer.name, layer.numel)
    x, own = tape.cast(x, bits), setting.own_linear and not layer.transposed
    return tape.op(
        layer.name,
        x,
        weight,
        elements=out,
        bits=bits,
        saves=(weight,),
        views=not own,
        saves_late=own,
        matmul=True,
    )


def _four_bit(tape: Tape, setting: BlockSetting, x: Value, layer: Linear, out: Num) -> Value:
    """Linear4bit: the matmul in 16 bits, the result in the dtype of x, the weight unpacked in both
    directions.

    bitsandbytes 0.50.2 nn/modules.py:626-637 casts x and casts the result back; autograd/
    _functions.py MatMul4Bit saves the packed weight only. The weight is unpacked for more than
    1,536 rows (backends/cuda/ops.py _dequant_linear_fallback; fewer may have a fused kernel,
    which is left out) and in backward (_functions.py, dequantize_4bit).
    """
    unpacked = sized(layer.ins[1] * layer.outs[1], 16)
    x16 = tape.cast(x, 16)
    y = tape.op(layer.name, x16, elements=out, bits=16, temp=unpacked, back_temp=unpacked)
    tape.hold(x, x16)
    return tape.cast(y, x.bits)


def _eight_bit(tape: Tape, x: Value, layer: Linear, out: Num) -> Value:
    """Linear8bitLt: x is quantized row by row, and saved unquantized.

    bitsandbytes 0.50.2 autograd/_functions.py MatMul8bitLt: forward has x in fp16, then in int8
    with a scale per row; int32 and fp16 products are alive besides the result (backends/cuda/ops.py
    int8_mm_dequant). `ctx.tensors` names x, so it is freed with the graph, and a checkpoint does
    not see it. Backward unpacks the weight to the dtype of x.
    """
    rows = x.elements() // layer.ins[1]
    quantized, products = sized(x.elements(), 8) + sized(rows, 32), sized(out, 32 + 16)
    half = sized(x.elements(), 16)
    temp = larger(quantized + products, quantized + half - sized(out, x.bits))
    weight = sized(layer.ins[1] * layer.outs[1], x.bits) + sized(layer.outs[1], 32)
    if x.grad:
        tape.pin(x)
    return tape.op(layer.name, x, elements=out, saves=(x,), temp=temp, back_temp=weight)
