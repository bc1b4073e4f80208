"""Core attention under a checkpoint: it runs forward once more when backward reaches it."""

from __future__ import annotations

from ..ledger.num import EMPTY
from .backward import BackwardPass, PendingGradient, Recompute
from .tape import Op, Tape


def core_storages(tape: Tape) -> set[int]:
    """Storages that only core attention makes and reads, its masks included."""
    inside = {v.base for op in tape.ops if op.core for v in (*op.outs, *op.saves)}
    outside = {v.base for op in tape.ops if not op.core for v in (*op.ins, *op.outs, *op.saves)}
    return inside - outside


class AttentionRecompute(Recompute):
    """Runs core attention forward again before the backward of its last operation.

    Where `tape.core_held`, the checkpoint holds the recomputed output and the gradient of the
    output until the first operation of core attention has run backward.
    """

    def __init__(self, back: BackwardPass, tape: Tape, storages: tuple[int, ...]) -> None:
        """`storages`: saved tensors that forward dropped and backward needs."""
        self.back, self.storages, self.holds = back, storages, tape.core_held
        self.ops = [op for op in tape.ops if op.core]
        self.checkpoint: list[tuple[int, PendingGradient]] = []

    def before_operation(self, op: Op, gradients: list[PendingGradient]) -> None:
        """Recompute before the first operation of core attention that runs backward."""
        if not (gradients and op.core and self.storages):
            return
        output = self._forward()
        self.storages = ()
        if self.holds:
            gradients[0].references += 1
            self.checkpoint = [(output, gradients[0])]
        else:
            self.back.recorder.free(output)

    def after_operation(self, op: Op) -> None:
        """Free what the checkpoint holds after the last operation of core attention."""
        if self.checkpoint and op is self.ops[0]:
            ((output, gradient),) = self.checkpoint
            self.back.recorder.free(output)
            self.back.release(gradient)

    def _forward(self) -> int:
        """Run core attention forward, keep what backward reads; returns the output's number."""
        recorder, alive = self.back.recorder, dict[int, int]()
        last_use = {v.base: i for i, op in enumerate(self.ops) for v in (*op.ins, *op.outs)}
        output = next(op for op in reversed(self.ops) if op.outs).outs[0].index
        stays = (*self.storages, output)
        for i, op in enumerate(self.ops):
            work = recorder.work(op.pieces)
            for value in (*op.outs, *op.saves):
                wanted = value in op.outs or value.base in self.storages
                if value.base == value.index and value.index not in alive and wanted:
                    alive[value.index] = recorder.make(value.bytes)
            self.back.see(EMPTY, op.temp)
            recorder.over(work)
            for index in [n for n in alive if last_use.get(n) == i and n not in stays]:
                recorder.free(alive.pop(index))
        number = alive.pop(output)
        self.back.ids |= alive
        return number
