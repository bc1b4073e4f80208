"""Linear layers: with an adapter (LoRA and DoRA as PEFT 0.21.2 runs them), frozen in 4 or 8 bits in
training (bitsandbytes 0.50.2, on an NVIDIA card), or trained.

Line numbers refer to transformers 5.17.0 and torch 2.11. Autocast follows torch's CUDA lists
(aten/src/ATen/autocast_mode.h): matmuls and attention run in 16 bits, softmax and sums in fp32;
weights are cast once per forward and kept, activations are cast at every use. The arguments of a
call are cast last to first (autocast_mode.h WrapFunction_: the casts are arguments of one C++ call,
which GCC evaluates from the right on x86-64).
"""

from __future__ import annotations

from collections.abc import Callable

from ....ledger.num import EMPTY, Bytes, Num, sized
from ....models.arch.adapters import Adapter
from ....models.arch.blocks import Linear
from ...autograd.reductions import row_sum_workspace
from ...autograd.tape import MM, Tape, Value
from .ops import add, dropout, scale
from .quantized import INT8, NF4, eight_bits, four_bits, unpacking_work
from .setting import BlockSetting


def add_adapter(
    tape: Tape, setting: BlockSetting, x: Value, y: Value, layer: Linear, adapter: Adapter
) -> Value:
    """result + lora_B(lora_A(dropout(x))) * scaling (PEFT 0.21.2 tuners/lora/layer.py:1074).

    x is cast to the adapter's dtype even under autocast, but not in PEFT's layers for bitsandbytes
    (tuners/lora/bnb.py); x and its cast stay named until the result is complete. y is the base
    layer's output, of which a 4-bit layer makes a copy.
    """
    kept = setting.bnb_adapters and setting.autocast
    adapter_in = x if kept else tape.cast(x, adapter.bits)
    if setting.bnb_adapters and setting.quantization == NF4:
        y = tape.op(f"{layer.name}.clone", y, passes=True)
    if adapter.dora:
        total = _dora(tape, setting, adapter_in, y, layer, adapter)
    else:
        dropped = dropout(tape, adapter_in) if adapter.dropout else adapter_in
        delta = _low_rank(tape, setting, dropped, layer, adapter)
        scaled = scale(tape, delta, f"{layer.name}.scaled")
        total = tape.op(f"{layer.name}.sum", y, scaled, bits=max(y.bits, scaled.bits), passes=True)
    result = total if kept else tape.cast(total, y.bits)
    tape.hold(adapter_in, x)
    return result


def _low_rank(
    tape: Tape, setting: BlockSetting, x: Value, layer: Linear, adapter: Adapter
) -> Value:
    """lora_B(lora_A(x)); autocast casts x for this projection alone."""
    rows = x.elements() // layer.ins[1]
    bits = setting.matmul_bits if setting.autocast else adapter.bits

    def project(ins: Value, size_in: Num, size_out: Num, name: str) -> Value:
        w = tape.param(f"{layer.name}.{name}", size_in * size_out, adapter.bits)
        w, ins = tape.cast(w, bits), tape.cast(ins, bits)  # last to first
        return tape.op(
            f"{layer.name}.{name}", ins, w, elements=rows * size_out, bits=bits, saves=(ins, w)
        )

    low = project(x, layer.ins[1], adapter.rank, "lora_A")
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
    extra = add(tape, left, scale(tape, right, f"{layer.name}.scaled"), f"{layer.name}.dora")
    total = add(tape, y, extra, f"{layer.name}.sum")
    tape.hold(y, dropped, *named)
    return total


def _scale_columns(tape: Tape, scales: Value, x: Value, layer: Linear, name: str) -> Value:
    """scales · x, one scale per column: both gradients are first computed with the shape and dtype
    of the product, then reduced and cast.
    """
    bits = max(scales.bits, x.bits)
    product = sized(x.elements(), bits)
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
