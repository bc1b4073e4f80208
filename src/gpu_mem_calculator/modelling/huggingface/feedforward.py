"""Feed-forward blocks, plain and gated."""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from ...model.blocks import Mlp
from .activation import activation, gated
from .linear import linear
from .ops import maybe_dropout, multiply
from .setting import BlockSetting


def mlp(tape: Tape, setting: BlockSetting, x: Value, block: Mlp) -> Value:
    """Record down(act(gate x) · up x), or down(act(up x)), in the order Python evaluates it."""
    first = linear(tape, setting, x, block.inputs[0])
    if not block.gated:
        inner = activation(tape, setting, first, block.activation)
    elif len(block.inputs) == 1:  # one fused projection, split into views
        gate, up = halves(tape, first)
        inner = gated(tape, setting, gate, up, block.activation)
    else:
        gate = activation(tape, setting, first, block.activation)
        up = linear(tape, setting, x, block.inputs[1])
        inner = multiply(tape, gate, up, "mlp.product")
    out = linear(tape, setting, inner, block.output)
    if len(block.inputs) == 1 and block.gated:
        tape.hold(first)  # the gate is a view of it, and named until the block returns
    if setting.quirks.residual_inside:
        tape.branch.append(inner)  # named until the block returns
    return maybe_dropout(tape, setting, out, block.dropout)


def halves(tape: Tape, whole: Value) -> tuple[Value, Value]:
    """Gate and up, as views of a fused projection."""
    half = whole.elements() // 2
    gate, up = tape.split("mlp.split", whole, [("mlp.gate", half), ("mlp.up", half)])
    return gate, up
