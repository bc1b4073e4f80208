"""Normalisations: torch's fused kernels in the local spec, or Transformer Engine's."""

from __future__ import annotations

from ....models.arch.blocks import Norm
from ...autograd.tape import Tape, Value
from .ops import MegatronSetting


def norm(tape: Tape, setting: MegatronSetting, x: Value, layer: Norm) -> Value:
    """Record a norm, which saves its input and fp32 statistics per row: mean and deviation, or the
    deviation alone.

    torch_norm.py (LayerNorm, RMSNorm), Transformer Engine module/layernorm_linear.py:445.
    """
    width = layer.size[1]
    rows = x.elements() // width
    count = 2 if layer.impl.startswith("layer") else 1
    stats = tape.value(f"{layer.name}.statistics", rows * count, 32, grad=False)
    ins = [x]
    if layer.affine:
        ins.append(tape.param(f"{layer.name}.weight", width, setting.bits))
    return tape.op(layer.name, *ins, saves=(x, stats))
