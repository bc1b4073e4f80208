"""The weights a run holds: trained ones, frozen ones, quantized ones, adapters."""

from __future__ import annotations

from ..ledger.num import Num
from ..model.adapters import adapted, adapter_parameters, linears
from ..model.arch import Arch, Layer
from .run import Precision, Run


def trained_elements(run: Run, layer: Layer) -> Num:
    """Elements of one layer that take a gradient."""
    if run.adapter is None:
        return run.scaled(layer.num_parameters)
    return adapter_parameters(layer, run.adapter.rank, run.adapter.targets, dora=run.adapter.dora)


def trained_total(run: Run) -> Num:
    """Elements of the whole model that take a gradient."""
    if run.adapter is None:
        return run.scaled(run.arch.num_parameters)
    total: Num = 0
    for layer, _, count in run.arch.runs:
        total = total + trained_elements(run, layer) * count
    return total


def trained_bits(run: Run, precision: Precision) -> int:
    """Width of the parameters that take a gradient."""
    return precision.weights if run.adapter is None else run.adapter.bits


def largest_trained(run: Run) -> Num:
    """Elements of the largest parameter that takes a gradient."""
    if run.adapter is None:
        return run.arch.largest_weight
    return max(
        run.adapter.rank * max(one.ins[1], one.outs[1])
        for layer, _, _ in run.arch.runs for one in linears(layer)
        if one.name.rpartition(".")[2] in run.adapter.targets
    )  # fmt: skip


def trained_tensors(run: Run) -> int:
    """Parameters that take a gradient, counted as tensors; an adapter has two, DoRA three."""
    if run.adapter is None:
        return run.arch.num_weights
    targets, each = run.adapter.targets, 3 if run.adapter.dora else 2
    return sum(each * count * sum(1 for _ in adapted(layer, targets))
               for layer, _, count in run.arch.runs)  # fmt: skip


def quantized_elements(arch: Arch) -> int:
    """Elements of the projections inside the layers, which are what bitsandbytes replaces."""
    return sum(
        count * sum(one.ins[1] * one.outs[1] for one in linears(layer))
        for layer, _, count in arch.runs
    )


def quantized_bytes(run: Run, elements: Num) -> Num:
    """Bytes of quantized projections (bitsandbytes 0.50.2 functional.py, nn/modules.py).

    nf4: 4 bits and one scale for 64 elements, fp32, or with double quantization 8 bits and one
    fp32 scale for 256 scales. int8: 8 bits and one fp32 scale a row (counted at 4096 a row).
    """
    if run.quantization == "int8":
        return elements + elements * 4 // 4096
    scales = elements // 64
    return elements // 2 + (scales + scales // 64 if run.double_quant else scales * 4)


def base_bytes(run: Run, precision: Precision) -> Num:
    """Bytes of the model itself, adapters not counted."""
    total = run.scaled(run.arch.num_parameters)
    if run.quantization is None:
        return total * precision.weights // 8
    packed = run.scaled(quantized_elements(run.arch))
    rest = 32 if run.upcast_unquantized else precision.weights
    return quantized_bytes(run, packed) + (total - packed) * rest // 8
