"""Feed-forward blocks, plain and gated."""

from __future__ import annotations

from ...model.blocks import Mlp
from ..tape import Tape, Value
from .activation import activation, gated
from .ops import Setting, linear, maybe_dropout


def mlp(tape: Tape, setting: Setting, x: Value, block: Mlp) -> Value:
    """down(act(gate x) · up x), or down(act(up x))."""
    made = [linear(tape, setting, x, layer) for layer in block.inputs]
    if not block.gated:
        inner = activation(tape, setting, made[0], block.activation)
    else:
        if len(made) == 1:  # one fused projection, split into views
            gate, up = halves(tape, made[0])
        else:
            gate, up = made
        inner = gated(tape, setting, gate, up, block.activation)
    out = linear(tape, setting, inner, block.output)
    return maybe_dropout(tape, setting, out, block.dropout)


def halves(tape: Tape, whole: Value) -> tuple[Value, Value]:
    """The two halves of a fused projection."""
    half = whole.elements() // 2
    gate, up = tape.split("mlp.split", whole, [("mlp.gate", half), ("mlp.up", half)])
    return gate, up
