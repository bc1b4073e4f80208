"""Core attention under a checkpoint: it runs forward once more when backward reaches it."""

from __future__ import annotations

from collections.abc import Callable

from ..ledger.num import Num
from .script import Reel
from .tape import Tape


def dropped(tape: Tape) -> set[int]:
    """Storages that only core attention makes and reads, its masks among them."""
    inside = {v.base for op in tape.ops if op.core for v in (*op.outs, *op.saves)}
    outside = {v.base for op in tape.ops if not op.core for v in (*op.ins, *op.outs, *op.saves)}
    return inside - outside


def rerun(
    reel: Reel, tape: Tape, again: tuple[int, ...], see: Callable[[Num, Num], None]
) -> dict[int, int]:
    """Write the forward of core attention, and leave what its backward reads (`again`).

    Returns the numbers of those tensors; `see` looks at each moment.
    """
    ops = [op for op in tape.ops if op.core]
    last = {v.base: i for i, op in enumerate(ops) for v in (*op.ins, *op.outs)}
    made: dict[int, int] = {}
    for i, op in enumerate(ops):
        work = reel.work(op.pieces)
        for value in (*op.outs, *op.saves):
            wanted = value in op.outs or value.base in again
            if value.base == value.index and value.index not in made and wanted:
                made[value.index] = reel.make(value.bytes)
        see(0, op.temp)
        reel.over(work)
        for index in [n for n in made if last.get(n) == i and n not in again]:
            reel.free(made.pop(index))
    return made
