"""The operations of Hugging Face blocks, each with what torch saves for its backward.

Line numbers refer to transformers 5.17.0 and torch 2.11. Autocast follows torch's CUDA lists
(aten/src/ATen/autocast_mode.h): matmuls and attention run in 16 bits, softmax and sums in fp32;
weights are cast once per forward and kept, activations are cast at every use.
"""

from __future__ import annotations

from ...autograd.reductions import row_sum_workspace
from ...autograd.tape import Tape, Value
from ...ledger.num import Num, larger
from ...model.adapters import Adapter
from ...model.blocks import Linear
from .quantized import NF4, eight_bits, four_bits
from .setting import BlockSetting


def linear(tape: Tape, setting: BlockSetting, x: Value, layer: Linear) -> Value:
    """Record torch.nn.Linear or GPT-2's Conv1D, with its adapter where there is one."""
    rows = x.elements() // layer.ins[1]
    out = rows * layer.outs[1]
    bits = setting.matmul_bits
    if setting.quantization is not None and not setting.training:
        return (four_bits if setting.quantization == NF4 else eight_bits)(tape, setting, x, layer)
    if setting.frozen:
        y = _frozen_linear(tape, setting, x, layer, out)
        adapter = setting.adapter
        if adapter is not None and layer.name.rpartition(".")[2] in adapter.targets:
            y = _add_adapter(tape, setting, x, y, layer, adapter)
        return y
    ins = [tape.cast(x, bits), _weight(tape, setting, layer.name, layer.numel)]
    work: Num = None
    if layer.bias:
        ins.append(_weight(tape, setting, f"{layer.name}.bias", layer.bias_numel))
        work = row_sum_workspace(rows, layer.outs[1])
    return tape.op(
        layer.name,
        *ins,
        elements=out,
        bits=bits,
        saves=ins[:2],
        back_temp=0 if work is None else work,
        settle=work,
    )


def _weight(tape: Tape, setting: BlockSetting, name: str, elements: Num) -> Value:
    """A weight, cast to the matmul's dtype under autocast."""
    weight = tape.param(f"{name}.weight", elements, setting.weight_bits, grad=not setting.frozen)
    if setting.weight_bits == setting.matmul_bits:
        return weight
    return tape.op(f"{name}.weight.to", weight, elements=elements, bits=setting.matmul_bits)


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
    ins = (tape.cast(x, bits), _weight(tape, setting, layer.name, layer.numel))
    return tape.op(layer.name, *ins, elements=out, bits=bits, saves=ins[1:])


def _four_bit(tape: Tape, setting: BlockSetting, x: Value, layer: Linear, out: Num) -> Value:
    """Linear4bit: the matmul in 16 bits, the result in the dtype of x, the weight unpacked in both
    directions.

    bitsandbytes 0.50.2 nn/modules.py:626-637 casts x and casts the result back; autograd/
    _functions.py MatMul4Bit saves the packed weight only. The weight is unpacked for more than
    1,536 rows (backends/cuda/ops.py _dequant_linear_fallback; fewer may have a fused kernel,
    which is left out) and in backward (_functions.py, dequantize_4bit).
    """
    unpacked = layer.ins[1] * layer.outs[1] * 2
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
    quantized = x.elements() + rows * 4
    temp = larger(quantized + 6 * out, quantized + 2 * x.elements() - out * x.bits // 8)
    weight = layer.ins[1] * layer.outs[1] * x.bits // 8 + layer.outs[1] * 4
    if x.grad:
        tape.pin(x)
    return tape.op(layer.name, x, elements=out, saves=(x,), temp=temp, back_temp=weight)


def _add_adapter(
    tape: Tape, setting: BlockSetting, x: Value, y: Value, layer: Linear, adapter: Adapter
) -> Value:
    """result + lora_B(lora_A(dropout(x))) * scaling (PEFT 0.21.2 tuners/lora/layer.py:1074).

    x is cast to the adapter's dtype even under autocast; x and its cast stay named until the result
    is complete. y is the base layer's output.
    """
    adapter_in = tape.cast(x, adapter.bits)
    if adapter.dora:
        total = _dora(tape, setting, adapter_in, y, layer, adapter)
    else:
        dropped = dropout(tape, adapter_in) if adapter.dropout else adapter_in
        delta = _low_rank(tape, setting, dropped, layer, adapter)
        scaled = tape.op(f"{layer.name}.scaled", delta)
        total = tape.op(f"{layer.name}.sum", y, scaled, bits=max(y.bits, scaled.bits), passes=True)
    result = tape.cast(total, y.bits)
    tape.hold(adapter_in, *([] if setting.quantization else [x]))
    return result


def _low_rank(
    tape: Tape, setting: BlockSetting, x: Value, layer: Linear, adapter: Adapter
) -> Value:
    """lora_B(lora_A(x)); autocast casts x for this projection alone."""
    rows = x.elements() // layer.ins[1]
    bits = setting.matmul_bits if setting.autocast else adapter.bits

    def project(ins: Value, size_in: Num, size_out: Num, name: str) -> Value:
        w = tape.param(f"{layer.name}.{name}", size_in * size_out, adapter.bits)
        if bits != adapter.bits:
            w = tape.op(f"{layer.name}.{name}.to", w, bits=bits)
        return tape.op(
            f"{layer.name}.{name}", ins, w, elements=rows * size_out, bits=bits, saves=(ins, w)
        )

    low = project(tape.cast(x, bits), layer.ins[1], adapter.rank, "lora_A")
    return project(low, adapter.rank, layer.outs[1], "lora_B")


def _dora(
    tape: Tape, setting: BlockSetting, x: Value, y: Value, layer: Linear, adapter: Adapter
) -> Value:
    """y + (m - 1) · base + m · lora(x) · scaling, with m = magnitude / ‖W + scaling · BA‖.

    PEFT 0.21.2 tuners/lora/variants.py DoraLinearVariant.forward, dora.py DoraLinearLayer.forward.
    Both products save their factors. `base` is y minus the bias; with dropout it is computed again
    from the dropped-out x with a copy of the weight. The norm is detached: what it needs is freed
    on return.
    """
    dropped = dropout(tape, x) if adapter.dropout else x
    named, weight_bits = _dora_norm(tape, setting, x, layer, adapter)
    norm = named[0]
    magnitude = tape.param(f"{layer.name}.magnitude", layer.outs[1], adapter.bits)
    ratio = tape.op(f"{layer.name}.ratio", magnitude, saves=(norm,), bits=norm.bits)
    base = y
    if layer.bias and not adapter.dropout:
        bits = max(y.bits, setting.weight_bits)  # the bias has the weights' dtype
        base = tape.op(f"{layer.name}.unbiased", y, bits=bits, passes=bits == y.bits)
    if adapter.dropout:
        bits = setting.matmul_bits if setting.autocast else dropped.bits
        cast = weight_bits != dropped.bits or dropped.bits != bits
        copied = setting.quantization is not None or cast
        size = layer.ins[1] * layer.outs[1]
        weight = tape.value(f"{layer.name}.weight.to", size, bits, grad=False)
        base = tape.op(
            f"{layer.name}.base",
            tape.cast(dropped, bits),
            elements=y.elements(),
            saves=(weight,) if copied else (),
        )
    delta = _low_rank(tape, setting, dropped, layer, adapter)
    less = tape.op(f"{layer.name}.ratio_less_1", ratio, passes=True)
    left = _scale_columns(tape, less, base, layer, "dora_base")
    right = _scale_columns(tape, ratio, delta, layer, "dora_lora")
    extra = add(tape, left, tape.op(f"{layer.name}.scaled", right), f"{layer.name}.dora")
    total = add(tape, y, extra, f"{layer.name}.sum")
    tape.hold(y, dropped, *named)
    return total


def _scale_columns(tape: Tape, scales: Value, x: Value, layer: Linear, name: str) -> Value:
    """scales · x, one scale per column: both gradients are first computed with the shape and dtype
    of the product, then reduced and cast.
    """
    bits = max(scales.bits, x.bits)
    product = x.elements() * bits // 8
    sums = row_sum_workspace(x.elements() // layer.outs[1], layer.outs[1])
    return tape.op(
        f"{layer.name}.{name}",
        scales,
        x,
        elements=x.elements(),
        bits=bits,
        saves=(scales, x),
        back_temp=2 * product - x.bytes + sums,
        settle=sums,
    )


def _dora_norm(
    tape: Tape, setting: BlockSetting, x: Value, layer: Linear, adapter: Adapter
) -> tuple[list[Value], int]:
    """‖W + scaling · BA‖ by rows; returns the tensors that stay named, the norm first, and the bits
    of W.

    dora.py get_lora_weight runs the adapter on an identity matrix, whose graph lives as long as
    its result does; get_weight_norm adds in the dtype of x.
    """
    ins, outs, name = layer.ins[1], layer.outs[1], layer.name
    bits = setting.matmul_bits if setting.autocast else adapter.bits
    source = tape.op(f"{name}.eye", x, elements=ins * ins, bits=adapter.bits)
    eye = tape.cast(source, bits)
    low = tape.op(f"{name}.eye_A", eye, elements=ins * adapter.rank)
    full = tape.op(f"{name}.eye_B", low, elements=ins * outs)
    tape.hold(source)
    delta = tape.cast(full, x.bits)
    named = [eye, low, delta]
    weight_bits = 16 if setting.quantization else setting.weight_bits
    if setting.quantization or weight_bits != x.bits:
        named.append(tape.op(f"{name}.weight.to", delta))
    scaled = tape.op(f"{name}.delta_scaled", delta)
    total = tape.op(f"{name}.merged", scaled)
    norm = tape.op(f"{name}.norm", total, elements=outs)
    tape.hold(scaled)
    return [norm, *named], weight_bits


def dropout(tape: Tape, x: Value) -> Value:
    """Record torch's fused dropout, which saves a boolean mask."""
    mask = tape.value(f"{x.name}.mask", x.elements(), 8, grad=False)
    return tape.op(f"{x.name}.dropout", x, saves=(mask,))


def maybe_dropout(tape: Tape, setting: BlockSetting, x: Value, rate: float) -> Value:
    """Dropout in training, where its rate is above zero; else x itself."""
    return dropout(tape, x) if rate > 0 and setting.training else x


def add(tape: Tape, a: Value, b: Value, name: str = "residual") -> Value:
    """Record a + b: it saves nothing, and both have the same gradient tensor."""
    return tape.op(name, a, b, bits=max(a.bits, b.bits), passes=True)


def multiply(tape: Tape, a: Value, b: Value, name: str) -> Value:
    """Record a · b: it saves each factor that the other's gradient needs.

    Where the dtypes differ, the gradient of the narrower factor is computed in the wider dtype,
    then cast.
    """
    saves = [x for x, other in ((a, b), (b, a)) if other.grad]
    bits = max(a.bits, b.bits)
    if a.bits == b.bits:
        return tape.op(name, a, b, bits=bits, saves=saves)
    narrow = a if a.bits < b.bits else b
    work = a.elements() * bits // 8
    return tape.op(name, a, b, bits=bits, saves=saves, back_temp=work, casts=narrow)


def gain(tape: Tape, x: Value, weight: Value, width: int, name: str) -> Value:
    """Record x · weight, one weight per column: its gradient is computed for every row, then
    summed over the rows of `width` columns.
    """
    saves = [v for v, other in ((x, weight), (weight, x)) if other.grad]
    bits = max(x.bits, weight.bits)
    if not weight.grad:
        return tape.op(name, x, weight, bits=bits, saves=saves)
    sums = row_sum_workspace(x.elements() // width, width)
    return tape.op(name, x, weight, bits=bits, saves=saves, back_temp=x.bytes + sums, settle=sums)


def scale(tape: Tape, x: Value, name: str) -> Value:
    """Record x times a constant."""
    return tape.op(name, x)
