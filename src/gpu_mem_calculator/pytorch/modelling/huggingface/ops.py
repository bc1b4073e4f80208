"""Dropout, sums and products, each with what torch saves for its backward (torch 2.11)."""

from __future__ import annotations

from ....ledger.num import sized
from ...autograd.reductions import row_sum_workspace
from ...autograd.tape import Tape, Value
from .setting import BlockSetting


def dropout(tape: Tape, x: Value) -> Value:
    """Record torch's fused dropout, which makes a boolean mask first (Dropout.cu) and saves it."""
    mask = tape.value(f"{x.name}.mask", x.elements(), 8, grad=False)
    return tape.op(f"{x.name}.dropout", x, saves=(mask,), mask_first=True)


def maybe_dropout(tape: Tape, setting: BlockSetting, x: Value, rate: float) -> Value:
    """Dropout in training, where its rate is above zero; else x itself."""
    return dropout(tape, x) if rate > 0 and setting.training else x


def add(tape: Tape, a: Value, b: Value, name: str = "residual") -> Value:
    """Record a + b: it saves nothing, and both have the same gradient tensor."""
    return tape.op(name, a, b, bits=max(a.bits, b.bits), passes=True)


def multiply(tape: Tape, a: Value, b: Value, name: str) -> Value:
    """Record a · b: it saves each factor that the other's gradient needs.

    Where the dtypes differ, the gradient of the narrower factor is computed in the wider dtype,
    then cast. torch's generated functions compute gradients in the alphabetical order of their
    arguments' names (torch 2.11 tools/autograd/gen_autograd_functions.py): `other` before `self`.
    """
    saves = [x for x, other in ((a, b), (b, a)) if other.grad]
    bits = max(a.bits, b.bits)
    if a.bits == b.bits:
        return tape.op(name, a, b, bits=bits, saves=saves, product=True)
    narrow = a if a.bits < b.bits else b
    work = sized(a.elements(), bits)
    return tape.op(name, a, b, bits=bits, saves=saves, back_temp=work, casts=narrow)


def gain(
    tape: Tape, x: Value, weight: Value, width: int, name: str, *, weight_left: bool = False
) -> Value:
    """Record x · weight, one weight per column: its gradient is computed for every row, then
    summed over the rows of `width` columns.

    `weight_left`: the code has weight · x. The right factor's gradient is computed first.
    """
    saves = [v for v, other in ((x, weight), (weight, x)) if other.grad]
    bits = max(x.bits, weight.bits)
    if not weight.grad:
        return tape.op(name, x, weight, bits=bits, saves=saves)
    sums = row_sum_workspace(x.elements() // width, width)
    return tape.op(
        name,
        x,
        weight,
        bits=bits,
        saves=saves,
        back_temp=x.bytes + sums,
        settle=sums,
        inside=weight_left,
        inputs_first=weight_left,
    )


def scale(tape: Tape, x: Value, name: str) -> Value:
    """Record x times a constant."""
    return tape.op(name, x)
