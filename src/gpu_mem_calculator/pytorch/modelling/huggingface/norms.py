"""Normalisations, one function for each implementation."""

from __future__ import annotations

from ....ledger.num import Bytes, sized
from ....models.arch.blocks import Norm, in_share
from ...autograd.tape import Tape, Value
from .liger import IN_PLACE, TORCH
from .ops import add, gain
from .setting import BlockSetting


def norm(
    tape: Tape, setting: BlockSetting, x: Value, layer: Norm, liger: str | None = None
) -> Value:
    """Record a norm by the name of its implementation; `liger`: where Liger's has its gradient, by
    default as the norms of a layer do.
    """
    kernel = setting.liger.layer_norms if liger is None else liger
    if kernel != TORCH:
        out = liger_rms(tape, setting, x, layer, kernel)
    else:
        out = IMPLEMENTATIONS[layer.impl](tape, setting, x, layer)
    tape.hold(x)  # an argument lives until the call returns
    return out


def _param(tape: Tape, setting: BlockSetting, layer: Norm) -> Value:
    return tape.param(
        f"{layer.name}.weight",
        in_share(layer.size[1], layer.share),
        setting.weight_bits,
        grad=not setting.frozen,
    )


def _scale_by_rms(tape: Tape, x: Value, layer: Norm) -> Value:
    """x · rsqrt(mean(x²) + eps) in fp32.

    Backward of x² allocates x.pow(1), then twice that, besides the gradient (torch 2.11
    csrc/autograd/FunctionsManual.cpp pow_backward).
    """
    x32 = tape.cast(x, 32)
    rows = x.elements() // layer.size[1]
    squares = tape.op(f"{layer.name}.pow", x32, saves=(x32,), back_temp=(x32.bytes, x32.bytes))
    mean = tape.op(f"{layer.name}.mean", squares, elements=rows)
    rsqrt = tape.op(f"{layer.name}.rsqrt", mean, save_out=True)
    return tape.op(f"{layer.name}.normed", x32, rsqrt, saves=(x32, rsqrt), back_temp=x32.bytes)


def rms(tape: Tape, setting: BlockSetting, x: Value, layer: Norm) -> Value:
    """LlamaRMSNorm: weight * normed.to(x.dtype)."""
    normed = _scale_by_rms(tape, x, layer)
    narrow = tape.cast(normed, x.bits)
    if not layer.affine:
        return narrow
    weight = _param(tape, setting, layer)
    out = gain(tape, narrow, weight, layer.size[1], layer.name, weight_left=True)
    tape.hold(normed)
    return out


def rms_float(tape: Tape, setting: BlockSetting, x: Value, layer: Norm) -> Value:
    """GemmaRMSNorm: (normed * (1 + weight.float())).type_as(x)."""
    normed = _scale_by_rms(tape, x, layer)
    weight = tape.op(f"{layer.name}.gain", _param(tape, setting, layer), bits=32)
    scaled = gain(tape, normed, weight, layer.size[1], f"{layer.name}.scaled")
    return tape.cast(scaled, x.bits)


def rms_product(tape: Tape, setting: BlockSetting, x: Value, layer: Norm) -> Value:
    """Olmo2RMSNorm: (weight * normed).to(x.dtype)."""
    normed = _scale_by_rms(tape, x, layer)
    weight = _param(tape, setting, layer)
    scaled = gain(tape, normed, weight, layer.size[1], f"{layer.name}.scaled", weight_left=True)
    out = tape.cast(scaled, x.bits)
    tape.hold(normed)  # named until the norm returns
    return out


def liger_rms(tape: Tape, setting: BlockSetting, x: Value, layer: Norm, kernel: str) -> Value:
    """LigerRMSNorm (liger-kernel 0.8.5 ops/rms_norm.py) saves its input and one fp32 number a row.

    Backward sums the weight's gradient in fp32, one row for each multiprocessor, then over those
    rows. The input's gradient is new or overwrites the output's.
    """
    rows = x.elements() // layer.size[1]
    rstd = tape.value(f"{layer.name}.rstd", rows, 32, grad=False)
    weight = _param(tape, setting, layer)
    sums: tuple[Bytes, ...] = ()
    if weight.grad:
        sums = (sized(layer.size[1] * setting.multiprocessors, 32),)
        sums += (sized(layer.size[1], 32),) if weight.bits < 32 else ()
    return tape.op(
        layer.name,
        x,
        weight,
        saves=(x, rstd),
        passes=kernel == IN_PLACE,
        back_temp=sums,
        inputs_first=True,
        saves_late=True,
    )


def rms_fused(tape: Tape, setting: BlockSetting, x: Value, layer: Norm) -> Value:
    """torch.nn.RMSNorm: saves its input (fp32 under autocast) and one fp32 number per row
    (torch 2.11 native/layer_norm.cpp rms_norm_symint, native_functions.yaml _fused_rms_norm).
    """
    x = tape.cast(x, 32) if setting.autocast else x
    stats = tape.value(f"{layer.name}.rstd", x.elements() // layer.size[1], 32, grad=False)
    weight = _param(tape, setting, layer)
    return tape.op(layer.name, x, weight, saves=(x, stats), inputs_first=True)


def layer_norm(tape: Tape, setting: BlockSetting, x: Value, layer: Norm) -> Value:
    """torch.nn.LayerNorm: saves its input (fp32 under autocast) and two fp32 statistics per row."""
    x = tape.cast(x, 32) if setting.autocast else x
    rows = x.elements() // layer.size[1]
    stats = tape.value(f"{layer.name}.stats", rows * 2, 32, grad=False)
    weights = [_param(tape, setting, layer)] if layer.affine else []
    if layer.bias:
        size = in_share(layer.size[1], layer.share)
        bias = tape.param(f"{layer.name}.bias", size, setting.weight_bits, grad=not setting.frozen)
        weights.append(bias)
    return tape.op(layer.name, x, *weights, saves=(x, stats), inputs_first=True)


def layer_wide(tape: Tape, setting: BlockSetting, x: Value, layer: Norm) -> Value:
    """OlmoLayerNorm: torch's layer norm on an fp32 copy, cast back (modeling_olmo.py:58)."""
    return tape.cast(layer_norm(tape, setting, tape.cast(x, 32), layer), x.bits)


def layer_float(tape: Tape, setting: BlockSetting, x: Value, layer: Norm) -> Value:
    """CohereLayerNorm: mean and variance by hand in fp32, times weight.float()."""
    x32 = tape.cast(x, 32)
    rows = x.elements() // layer.size[1]
    mean = tape.op(f"{layer.name}.mean", x32, elements=rows)
    centred = add(tape, x32, mean, f"{layer.name}.centred")
    squares = tape.op(
        f"{layer.name}.pow", centred, saves=(centred,), back_temp=(x32.bytes, x32.bytes)
    )
    variance = tape.op(f"{layer.name}.variance", squares, elements=rows)
    rsqrt = tape.op(f"{layer.name}.rsqrt", variance, save_out=True)
    again = add(tape, x32, mean, f"{layer.name}.centred_again")
    normed = tape.op(f"{layer.name}.normed", again, rsqrt, saves=(again, rsqrt))
    weight = tape.cast(_param(tape, setting, layer), 32)
    scaled = gain(tape, normed, weight, layer.size[1], f"{layer.name}.scaled")
    return tape.cast(scaled, x.bits)


IMPLEMENTATIONS = {
    "rms": rms,
    "rms_float": rms_float,
    "rms_product": rms_product,
    "rms_fused": rms_fused,
    "layer": layer_norm,
    "layer_wide": layer_wide,
    "layer_float": layer_float,
}
