"""A tape run forward and backward under recompute by operation: forward keeps the results of some
operations, and backward recomputes the others from them.

torch 2.11 utils/checkpoint.py: create_selective_checkpoint_contexts keeps results in a storage. The
recomputed forward takes each out of it instead of running the operation (_CachedTorchDispatchMode),
so a result is freed like any other tensor from then on. Results that it does not reach are freed
with the checkpoint.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.num import EMPTY, Bytes
from .backward import BackwardPass, PendingGradient, Recompute
from .events import EventRecorder
from .forward import run_forward, storage_owners
from .peak import PeakTracker
from .tape import ATTENTION, MM, Op, Tape, Value
from .walk import BlockWalk, block_walk, last_saving, walk_once

EVERY_SECOND_MM = "every_second_mm"


def kept_storages(tape: Tape, keeps: tuple[str, ...]) -> set[int]:
    """Storages that forward keeps: results of attention, and of the first, third, fifth ... matmul
    without a bias (torchtitan 0.2.2 distributed/activation_checkpoint.py _custom_policy).
    """
    kept: set[int] = set()
    matmuls = 0
    for op in tape.ops:
        matmuls += op.kernel == MM
        odd = op.kernel == MM and matmuls % 2 == 1
        if (odd and EVERY_SECOND_MM in keeps) or (op.kernel == ATTENTION and ATTENTION in keeps):
            kept |= {v.index for v in op.outs if v.base == v.index}
        if op.kernel == ATTENTION and ATTENTION in keeps:
            kept |= {v.base for v in op.saves} - _made_before(op)
    return kept


def _made_before(attention: Op) -> set[int]:
    """Storages that exist before an attention kernel runs: its inputs, and its mask."""
    masks = (v for v in attention.saves if v.name == "attn.mask")
    return {v.base for v in (*attention.ins, *masks)}


class OperationRecompute(Recompute):
    """Runs the block forward again before the backward of the last operation that saves anything.

    `kept`: storages that forward has kept. `stop`: the operation at which it ends; -1: none.
    """

    def __init__(
        self, back: BackwardPass, tape: Tape, ends: tuple[Value, Value], kept: set[int], stop: int
    ) -> None:
        self.back, self.tape, self.kept, self.stop = back, tape, kept, stop
        self.entry, self.exit = ends
        saved = {v.base for op in tape.ops for v in op.saves}
        self.saved = saved
        self.storages = tuple(sorted(saved - kept - {self.entry.index}))
        self.packing = [op for op in tape.ops if op.packs]

    def before_operation(self, op: Op, gradients: list[PendingGradient]) -> None:
        """Recompute before the last operation that saves anything runs backward."""
        if not (self.packing and op is self.packing[-1] and gradients):
            return
        back = self.back
        unused = self._not_reached()
        given = {i: back.ids[i] for i in (self.entry.index, *sorted(self.kept))}
        stays = {*self.saved, self.entry.index, *unused}
        _, ids = run_forward(
            back.recorder,
            self.tape,
            (),
            self.exit,
            back.owners,
            stays,
            for_backward="keep",
            stop=self.stop,
            given=given,
            seen=_BackwardPeak(back),
        )
        if self.stop < 0:
            back.recorder.free(ids[self.exit.base])
        back.ids |= {index: tensor for index, tensor in ids.items() if index != self.exit.base}
        back.with_checkpoint = [back.ids[index] for index in sorted(unused)]

    def _not_reached(self) -> set[int]:
        """Kept results of operations at which recompute has ended."""
        if self.stop < 0:
            return set()
        reached = {v.base for op in self.tape.ops[: self.stop] for v in op.outs}
        last = self.tape.ops[self.stop]
        if last.saves_late or any(v in last.outs for v in last.saves):
            reached |= {v.base for v in last.outs}
        return {index for index in self.kept if index not in reached} - self.saved


class _BackwardPeak(PeakTracker):
    """Passes the instants of a recomputed forward on to the peaks of a backward."""

    __slots__ = ("back",)

    def __init__(self, back: BackwardPass) -> None:
        super().__init__()
        self.back = back

    def see(self, act: Bytes, grad: Bytes, temp: Bytes) -> None:
        """An instant of the recomputed forward."""
        self.back.see(EMPTY, temp)


def walk_by_operation(
    tape: Tape, entry: Value, exit_: Value, keeps: tuple[str, ...], *, early_stop: bool = True
) -> BlockWalk:
    """Run the tape forward, then backward, under torch's checkpoint with a policy by operation.

    Forward keeps the block's input and the results that `keeps` names. Casts that autocast caches
    stay until forward ends. `early_stop`: recompute ends with the last tensor that is needed.
    """
    owners = storage_owners(tape, entry)
    kept = kept_storages(tape, keeps)
    casts = [v.index for op in tape.ops for v in op.outs if v.cached]
    once = walk_once(tape, (entry,), exit_, owners, {entry.index})
    recorder = EventRecorder()
    stays = {entry.index, *kept, *casts}
    forward, ids = run_forward(recorder, tape, (entry,), exit_, owners, stays, for_backward="free")
    events = recorder.end_forward()
    until_end = tuple(ids[index] for index in casts if index not in kept)
    back = BackwardPass(recorder, ids, owners, dict.fromkeys(sorted(kept), 0), entry, exit_)
    back.uncounted = EMPTY
    stop = last_saving(tape) if early_stop else -1
    back.run(tape, OperationRecompute(back, tape, (entry, exit_), kept, stop), unpacked=True)
    names = (entry.index, *sorted(kept))
    script = back.events(entry, exit_, events, set(), output_grad_held=False)
    script = replace(script, until_forward_ends=until_end)
    return replace(block_walk(back, names, entry, forward, once, script), keeps_input=True)
