"""Feed-forward blocks, plain and gated."""

from __future__ import annotations

from ....models.arch.blocks import Mlp
from ...autograd.tape import Tape, Value
from .activation import activation, gated
from .linear import linear
from .ops import maybe_dropout, multiply
from .setting import BlockSetting


def mlp(tape: Tape, setting: BlockSetting, x: Value, block: Mlp) -> Value:
    """Record down(act(gate x) · up x), or down(act(up x)), in the order Python evaluates it."""
    first = linear(tape, setting, x, block.inputs[0])
    if block.gated and setting.liger.gate:
        inner = _liger_gate(tape, setting, x, first, block)
    elif not block.gated:
        inner = activation(tape, setting, first, block.activation)
    elif len(block.inputs) == 1:  # one fused projection, split into views
        gate, up = halves(tape, first)
        inner = gated(tape, setting, gate, up, block.activation)
    else:
        gate = activation(tape, setting, first, block.activation)
        up = linear(tape, setting, x, block.inputs[1])
        inner = multiply(tape, gate, up, "mlp.product")
    out = linear(tape, setting, inner, block.output, setting.int8_outliers)
    if len(block.inputs) == 1 and block.gated:
        tape.hold(first)  # the gate is a view of it, and named until the block returns
    if setting.quirks.residual_inside:
        tape.branch.append(inner)  # named until the block returns
    return maybe_dropout(tape, setting, out, block.dropout)


def _liger_gate(tape: Tape, setting: BlockSetting, x: Value, first: Value, block: Mlp) -> Value:
    """LigerSiLUMulFunction and LigerGELUMulFunction (liger-kernel 0.8.5 ops/swiglu.py, geglu.py):
    one kernel saves gate and up, and overwrites both with their gradients in backward.

    Of a fused projection it saves copies, because the halves are not contiguous.
    """
    if len(block.inputs) > 1:
        gate, up = first, linear(tape, setting, x, block.inputs[1])
        saves = (gate, up)
    else:
        gate, up = halves(tape, first)
        names = ("mlp.gate_copy", "mlp.up_copy")
        copies = [tape.value(name, gate.elements(), gate.bits, grad=False) for name in names]
        saves = (copies[0], copies[1])
    return tape.op(
        "mlp.product", gate, up, saves=saves, mask_first=True, saves_late=True, hands_over=True
    )


def halves(tape: Tape, whole: Value) -> tuple[Value, Value]:
    """Gate and up, as views of a fused projection."""
    half = whole.elements() // 2
    gate, up = tape.split("mlp.split", whole, [("mlp.gate", half), ("mlp.up", half)])
    return gate, up
