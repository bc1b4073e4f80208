"""Normalisations: torch's fused kernels in the local spec, Transformer Engine's alike."""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from ...model.blocks import Norm
from .ops import MegatronSetting


def norm(tape: Tape, how: MegatronSetting, x: Value, layer: Norm) -> Value:
    """Keeps its input and fp32 statistics a row: mean and deviation, or the latter alone.

    torch_norm.py (LayerNorm, RMSNorm), Transformer Engine module/layernorm_linear.py:445.
    """
    width = layer.size[1]
    rows = x.elements() // width
    count = 2 if layer.impl.startswith("layer") else 1
    stats = tape.value(f"{layer.name}.statistics", rows * count, 32, grad=False)
    ins = [x]
    if layer.affine:
        ins.append(tape.param(f"{layer.name}.weight", width, how.bits))
    return tape.op(layer.name, *ins, saves=(x, stats))
