"""Loading a quantized model: each projection is packed from its 16-bit weight."""

from __future__ import annotations

from ..autograd.events import BlockEvents, EventRecorder
from ..ledger.num import ceil_div, sized
from ..model.adapters import linears
from ..model.blocks import Linear
from ..run.run import Precision, Run
from .weights import quantized_bytes


def loading_events(run: Run, precision: Precision) -> BlockEvents:
    """Events of loading: projections are packed one by one, then the other weights are allocated.

    bitsandbytes 0.50.2: quantize_4bit (functional.py) has the packed weight and fp32 scales until
    these are packed, too; Int8Params.cuda (nn/modules.py) has an fp16 copy. A 16-bit weight is
    freed after the loop over the layers has allocated the next one.
    """
    recorder = EventRecorder()
    left: list[int] = []
    previous: list[int] = []
    for layer in run.arch.layers:
        for linear in linears(layer):
            unpacked = [recorder.weight(sized(linear.numel, 16))]
            recorder.over(previous)
            left += _pack(recorder, run, linear)
            previous = unpacked
    recorder.over(previous)
    bits = 32 if run.upcast_unquantized else precision.weights
    packed = {f"{one.name}.weight" for layer, _, _ in run.arch.runs for one in linears(layer)}
    for weight in run.arch.weights():
        if not any(weight.name.endswith(f".{name}") for name in packed):
            left.append(recorder.weight(sized(weight.numel, bits)))
    return recorder.forward_only(left)


def _pack(recorder: EventRecorder, run: Run, linear: Linear) -> list[int]:
    """Record how a projection is packed; the tensors that stay: packed weight, scales, code."""
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
    scales = quantized_bytes(run, linear) - body
    tensors = [recorder.weight(body), recorder.weight(scales)]
    recorder.over(work)
    return tensors
