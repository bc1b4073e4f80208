"""Making a quantized model: one projection after another, each from its 16-bit weight."""

from __future__ import annotations

from ..autograd.events import BlockEvents, EventRecorder
from ..ledger.num import ceil_div
from ..model.adapters import linears
from ..model.blocks import Linear
from ..run.run import Precision, Run
from .weights import quantized_bytes


def loading_script(run: Run, precision: Precision) -> BlockEvents:
    """Projections are packed as they come, then the rest of the model is made.

    bitsandbytes 0.50.2: quantize_4bit (functional.py) has fp32 scales beside the packed weight
    until they are packed, too; Int8Params.cuda (nn/modules.py) has an fp16 copy. The 16-bit weight
    goes when the loop over the layers has the next one.
    """
    reel = EventRecorder()
    left: list[int] = []
    before: list[int] = []
    for layer in run.arch.layers:
        for one in linears(layer):
            wide = [reel.weight(one.numel * 2)]
            reel.over(before)
            left += _packed(reel, run, one)
            before = wide
    reel.over(before)
    bits = 32 if run.upcast_unquantized else precision.weights
    packed = {f"{one.name}.weight" for layer, _, _ in run.arch.runs for one in linears(layer)}
    for weight in run.arch.weights():
        if not any(weight.name.endswith(f".{name}") for name in packed):
            left.append(reel.weight(weight.numel * bits // 8))
    return BlockEvents(sizes=tuple(reel.sizes), entry=-1, exit=-1, forward=tuple(reel.events),
                  left=tuple(left))  # fmt: skip


def _packed(reel: EventRecorder, run: Run, one: Linear) -> list[int]:
    """The packed weight of a projection, and what belongs to it."""
    count = one.numel
    if run.quantization != "int8" and not run.double_quant:  # scales, weight, code
        return [reel.weight(size) for size in (4 * ceil_div(count, 64), ceil_div(count, 2), 64)]
    body = count if run.quantization == "int8" else ceil_div(count, 2)
    if run.quantization == "int8":
        reel.over(reel.work((count * 2,)))
        work = reel.work((count * 2,))
    else:
        work = reel.work((4 * ceil_div(count, 64),))
    made = [reel.weight(body), reel.weight(int(quantized_bytes(run, one)) - body)]
    reel.over(work)
    return made
