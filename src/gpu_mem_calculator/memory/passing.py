"""Running a tape forward without a graph: how high it gets, and what of it stays."""

from __future__ import annotations

from collections.abc import Iterable

from ..ledger.num import Num
from .moment import High, Moment
from .tape import Tape, Value

FOR_BACKWARD = ("attn.logsumexp", "ssm.")


def passing(tape: Tape, entry: Value, exit_: Value, kept: Iterable[Value] = ()) -> Moment:
    """The highest moment of a forward pass under `torch.inference_mode`.

    Nothing is saved: a tensor lives until its last use. What an operation makes for its backward
    it makes all the same, and lets go when it has run; left out are log-sum-exps, which attention
    kernels compute where a gradient is needed, and the states that scans keep for it. `kept`
    outlives the block.
    """
    last: dict[int, int] = {}
    size: dict[int, Num] = {entry.index: entry.bytes}
    for i, op in enumerate(tape.ops):
        for value in (*op.outs, *op.ins):
            last[value.base] = i
            if value.base == value.index and (value in op.outs):
                size[value.index] = value.bytes
    for value in (exit_, *kept):
        last.pop(value.base, None)
    ends: dict[int, list[int]] = {}
    for index, i in last.items():
        if index in size:
            ends.setdefault(i, []).append(index)
    alive: Num = entry.bytes
    high = High(alive)
    for i, op in enumerate(tape.ops):
        made: Num = 0
        for value in op.outs:
            if value.base == value.index:
                alive = alive + value.bytes
        for value in op.saves:
            if value.base not in size and not value.name.startswith(FOR_BACKWARD):
                made = made + value.bytes
        high.see(alive, 0, op.temp + made)
        for index in ends.get(i, ()):
            alive = alive - size[index]
    return high.moment
