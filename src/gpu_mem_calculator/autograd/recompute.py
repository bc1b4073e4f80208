"""Core attention under a checkpoint: it runs forward once more when backward reaches it."""

from __future__ import annotations

from .backward import BackwardPass, PendingGradient, Recompute
from .tape import Op, Tape


def dropped(tape: Tape) -> set[int]:
    """Storages that only core attention makes and reads, its masks among them."""
    inside = {v.base for op in tape.ops if op.core for v in (*op.outs, *op.saves)}
    outside = {v.base for op in tape.ops if not op.core for v in (*op.ins, *op.outs, *op.saves)}
    return inside - outside


class AttentionRecompute(Recompute):
    """Core attention in a backward: before its last operation it runs forward again.

    Where `tape.core_held`, the checkpoint holds the output that this makes and the gradient that
    it was given until the first operation is done.
    """

    def __init__(self, back: BackwardPass, tape: Tape, again: tuple[int, ...]) -> None:
        """`again`: what its backward reads and forward has not kept."""
        self.back, self.again, self.holds = back, again, tape.core_held
        self.ops = [op for op in tape.ops if op.core]
        self.held: list[tuple[int, PendingGradient]] = []

    def before(self, op: Op, flows: list[PendingGradient]) -> None:
        """Backward has come to an operation."""
        if not (flows and op.core and self.again):
            return
        output = self._forward()
        self.again = ()
        if self.holds:
            flows[0].owners += 1
            self.held = [(output, flows[0])]
        else:
            self.back.reel.free(output)

    def behind(self, op: Op) -> None:
        """An operation is done."""
        if self.held and op is self.ops[0]:
            ((output, flow),) = self.held
            self.back.reel.free(output)
            self.back.let_go(flow)

    def _forward(self) -> int:
        """Run it, leave what backward reads, and give the number of the output."""
        reel, made = self.back.reel, dict[int, int]()
        last = {v.base: i for i, op in enumerate(self.ops) for v in (*op.ins, *op.outs)}
        output = next(op for op in reversed(self.ops) if op.outs).outs[0].index
        for i, op in enumerate(self.ops):
            work = reel.work(op.pieces)
            for value in (*op.outs, *op.saves):
                wanted = value in op.outs or value.base in self.again
                if value.base == value.index and value.index not in made and wanted:
                    made[value.index] = reel.make(value.bytes)
            self.back.see(0, op.temp)
            reel.over(work)
            for index in [n for n in made if last.get(n) == i and n not in (*self.again, output)]:
                reel.free(made.pop(index))
        number = made.pop(output)
        self.back.ids |= made
        return number
