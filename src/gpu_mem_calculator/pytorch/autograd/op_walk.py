"""A tape run forward and backward under recompute by operation."""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.num import EMPTY
from .backward import BackwardPass
from .events import EventRecorder
from .forward import run_forward, storage_owners
from .op_recompute import OperationRecompute, kept_storages
from .tape import Tape, Value
from .walk import BlockWalk, block_walk, last_saving, walk_once


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
