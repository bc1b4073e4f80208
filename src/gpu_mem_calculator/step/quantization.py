"""Loading a quantized model: each projection is packed from its 16-bit weight."""

from __future__ import annotations

from ..autograd.events import BlockEvents, EventRecorder
from ..ledger.num import ceil_div
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
            unpacked = [recorder.weight(linear.numel * 2)]
            recorder.over(previous)
            left += _pack(recorder, run, linear)
            previous = unpacked
    recorder.over(previous)
    bits = 32 if run.upcast_unquantized else precision.weights
    packed = {f"{one.name}.weight" for layer, _, _ in run.arch.runs for one in linears(layer)}
    for weight in run.arch.weights():
        if not any(weight.name.endswith(f".{name}") for name in packed):
            left.append(recorder.weight(weight.numel * bits // 8))
    return recorder.forward_only(left)


def _pack(recorder: EventRecorder, run: Run, linear: Linear) -> list[int]:
    """Record how a projection is packed; the tensors that stay: packed weight, scales, code."""
    count = linear.numel
    if run.quantization != "int8" and not run.double_quant:  # scales, weight, code
        return [recorder.weight(size) for size in (4 * ceil_div(count, 64), ceil_div(count, 2), 64)]
    body = count if run.quantization == "int8" else ceil_div(count, 2)
    if run.quantization == "int8":
        recorder.over(recorder.work((count * 2,)))
        work = recorder.work((count * 2,))
    else:
        work = recorder.work((4 * ceil_div(count, 64),))
    scales = int(quantized_bytes(run, linear)) - body
    tensors = [recorder.weight(body), recorder.weight(scales)]
    recorder.over(work)
    return tensors
