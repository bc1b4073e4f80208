"""A quantized base: how blocks run it, and how each projection is packed from its weight."""

from __future__ import annotations

from typing import Any

from ...ledger.num import ceil_div, sized
from ...models.arch.adapters import linears
from ...models.arch.arch import part_linears
from ...models.arch.blocks import Linear
from ...pytorch.autograd.events import BlockEvents, EventRecorder
from ...run.run import Precision, Run
from .weights import narrows_biases, quantized_bytes


def quantized_fields(run: Run) -> dict[str, Any]:
    """The fields of a block's setting that are about a quantized base."""
    return {
        "quantization": run.quantization,
        "double_quant": run.quantization == "nf4" and run.double_quant,
        "hopper": run.compute_capability == "9.0",
        "nf4_bits": run.nf4_compute_bits,
        "packed_bits": 32 if run.from_pretrained and not run.precision.endswith("_pure") else 16,
        "bnb_adapters": run.from_pretrained,
        "int8_threshold": run.int8_threshold > 0,
        "int8_outliers": run.int8_outliers,
    }


def loading_events(run: Run, precision: Precision) -> BlockEvents:
    """Events of loading: projections are packed one by one, then the other weights are allocated.

    A 16-bit weight is freed after the loop over its module's projections has allocated the next
    one, and at the loop's end. PEFT's prepare_model_for_kbit_training then makes fp32 copies of the
    other weights (`upcast_unquantized`). The first forward casts biases of 4-bit projections back
    (bitsandbytes 0.50.2 nn/modules.py:634); here they are cast at once.
    """
    recorder = EventRecorder()
    left: list[int] = []
    for layer in run.arch.layers:
        for part in (layer.mixer, layer.mlp):
            previous: list[int] = []
            for linear in part_linears(part):
                unpacked = [recorder.weight(sized(linear.numel, 16))]
                recorder.over(previous)
                left += _pack(recorder, run, linear)
                previous = unpacked
            recorder.over(previous)
    packed = {one.name for layer, _, _ in run.arch.runs for one in linears(layer)}
    weights, biases = (tuple(f".{name}.{kind}" for name in packed) for kind in ("weight", "bias"))
    others = [weight for weight in run.arch.weights() if not weight.name.endswith(weights)]
    loaded = [recorder.weight(sized(weight.numel, precision.weights)) for weight in others]
    for index, weight in enumerate(others if run.upcast_unquantized else ()):
        narrow = narrows_biases(run) and weight.name.endswith(biases)
        for bits in (32, 16) if narrow else (32,):
            copy = recorder.weight(sized(weight.numel, bits))
            recorder.over((loaded[index],))
            loaded[index] = copy
    for bits in (32, 16) if run.upcast_at_startup else ():
        for index, weight in enumerate(others):
            copy = recorder.weight(sized(weight.numel, bits))
            recorder.over((loaded[index],))
            loaded[index] = copy
    return recorder.forward_only((*left, *loaded))


def _pack(recorder: EventRecorder, run: Run, linear: Linear) -> list[int]:
    """Record how a projection is packed; the tensors that stay: packed weight, scales, code.

    bitsandbytes 0.50.2: quantize_4bit (functional.py) has the packed weight, fp32 scales, and these
    less their mean, until the scales are packed, too; Int8Params.cuda (nn/modules.py) has an fp16
    copy.
    """
    count = linear.numel
    if run.quantization != "int8" and not run.double_quant:  # scales, weight, code
        sizes = (sized(ceil_div(count, 64), 32), sized(ceil_div(count, 2), 8), sized(16, 32))
        return [recorder.weight(size) for size in sizes]
    body = sized(count if run.quantization == "int8" else ceil_div(count, 2), 8)
    if run.quantization == "int8":
        recorder.over(recorder.work((sized(count, 16),)))
        work = recorder.work((sized(count, 16),))
    else:
        work = recorder.work((sized(ceil_div(count, 64), 32),))
    tensors = [recorder.weight(body)]
    if run.quantization != "int8":
        work += recorder.work((sized(ceil_div(count, 64), 32),))
    tensors.append(recorder.weight(quantized_bytes(run, linear) - body))
    recorder.over(reversed(work))
    return tensors
