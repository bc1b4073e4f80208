"""LoRA and DoRA on a linear layer, as PEFT 0.21.2 runs them."""

from __future__ import annotations

from ....ledger.num import Num, sized
from ....models.arch.adapters import Adapter
from ....models.arch.blocks import Linear
from ...autograd.reductions import row_sum_workspace
from ...autograd.tape import Tape, Value
from .ops import add, dropout, scale
from .quantized import NF4
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
