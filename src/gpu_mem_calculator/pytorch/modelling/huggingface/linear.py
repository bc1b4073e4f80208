"""Linear layers: trained, frozen, quantized, or with an adapter.

Line numbers refer to transformers 5.17.0 and torch 2.11. Autocast follows torch's CUDA lists
(aten/src/ATen/autocast_mode.h): matmuls and attention run in 16 bits, softmax and sums in fp32;
weights are cast once per forward and kept, activations are cast at every use. The arguments of a
call are cast last to first (autocast_mode.h WrapFunction_: the casts are arguments of one C++ call,
which GCC evaluates from the right on x86-64).
"""

from __future__ import annotations

from ....ledger.num import EMPTY, Bytes, Num
from ....models.arch.blocks import Linear
from ...autograd.reductions import row_sum_workspace
from ...autograd.tape import MM, Tape, Value
from .adapters import add_adapter
from .frozen_quantized import frozen_eight_bits, frozen_four_bits
from .quantized import INT8, NF4, eight_bits, four_bits
from .setting import BlockSetting


def linear(
    tape: Tape, setting: BlockSetting, x: Value, layer: Linear, outliers: float = 0.0
) -> Value:
    """Record torch.nn.Linear or GPT-2's Conv1D, with its adapter where there is one; `outliers`:
    the share of x's columns that have one, for int8.
    """
    rows = x.elements() // layer.ins[1]
    if setting.quantization is not None and not setting.training:
        y = (four_bits if setting.quantization == NF4 else eight_bits)(tape, setting, x, layer)
    elif setting.frozen:
        y = _frozen_linear(tape, setting, x, layer, rows * layer.outs[1], outliers)
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
    cast = tape.cast(weight, setting.matmul_bits)
    cast.cached = cast.cached and not setting.quirks.weights_viewed
    return cast


def _frozen_linear(
    tape: Tape, setting: BlockSetting, x: Value, layer: Linear, out: Num, outliers: float
) -> Value:
    """A linear layer whose weight takes no gradient: its input is not saved.

    Autocast caches only casts of leaves that take gradients (torch 2.11 autocast_mode.cpp
    cached_cast), so a frozen fp32 weight is cast at each use, and that copy is saved for backward.
    """
    if setting.quantization == NF4:
        return frozen_four_bits(tape, setting, x, layer, out)
    if setting.quantization == INT8:
        return frozen_eight_bits(tape, setting, x, layer, out, outliers)
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
