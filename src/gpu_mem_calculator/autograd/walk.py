"""Running a tape forward and backward: what a block keeps, and how high it gets.

Autograd's rules (torch 2.11, torch/csrc/autograd/engine.cpp and input_buffer.cpp):
- a tensor lives while Python names it (until its last use here) or an operation has saved it;
- in backward an operation's saved tensors go when it has run, and so does its output's gradient;
- a second gradient for a tensor is added in place, out of place where the first one is shared;
- gradients are summed to their tensor's shape and cast to its dtype when the operation has returned
  (validate_outputs): what it had saved is still there, but not under a checkpoint, whose hooks
  have handed it over for good.
"""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num
from .backward import BackwardPass
from .events import BlockEvents, EventRecorder
from .forward import KEPT, NOTHING, forward, owners
from .peak import PeakParts
from .recompute import AttentionRecompute, dropped
from .tape import Tape, Value

HOOKS, REENTRANT = "hooks", "reentrant"  # how a checkpoint around a block is made


class BlockWalk(Struct, frozen=True, kw_only=True):
    """What a block costs: what it keeps, and its highest moment in each direction.

    Moments count everything the block itself holds then, its input and the gradient of its
    output included. `later` is backward when the parameters' gradients are there already: a new
    one is added to the old one and goes. `transient` is a forward that keeps nothing, as under
    a checkpoint. `holds_input`: backward's moments are those under a checkpoint, which holds the
    block's input until the block is done.
    """

    saved: tuple[tuple[str, Num], ...]
    input_bytes: Num
    forward: PeakParts
    transient: PeakParts
    backward: PeakParts
    later: PeakParts
    hooks: tuple[tuple[Num, Num], ...]  # each weight gradient made, and what is alive then
    after_first: Num  # the highest moment of backward after the first weight gradient
    pinned: Num = 0  # the part of what is kept that stays until all of backward is done
    holds_input: bool = False
    once: BlockEvents  # a forward that keeps nothing
    script: BlockEvents  # one that keeps what backward needs, and backward

    @property
    def saved_bytes(self) -> Num:
        """Everything kept from forward to backward."""
        total: Num = 0
        for _, size in self.saved:
            total = total + size
        return total


def walk(
    tape: Tape, entry: Value, exit_: Value, *, recompute_core: bool = False, checkpoint: str = "",
    given: bool = False,
) -> BlockWalk:  # fmt: skip
    """Run the tape forward, then backward.

    `recompute_core` is a checkpoint around core attention: it keeps what comes in and what
    goes out, and makes the rest again. `checkpoint` is one around all of it: HOOKS (torch's own,
    utils/checkpoint.py _checkpoint_hook) or REENTRANT; it holds the block's input. `given`: who
    gave the output's gradient holds it, too.
    """
    own = owners(tape, entry)
    saved = {v.base for op in tape.ops for v in op.saves}
    gone = dropped(tape) if recompute_core else set()
    kept = {v.base: 0 for op in tape.ops for v in op.saves if v.base not in gone}
    again = tuple(sorted(gone & saved))
    pins = {v.base for v in tape.pinned}
    pinned: Num = 0
    for index in sorted(pins):
        pinned = pinned + own[index].bytes
    held = entry if checkpoint else None
    bare, reel = EventRecorder(), EventRecorder()
    stays = {entry.index} if checkpoint else set()
    transient, ids = forward(bare, tape, (entry,), exit_, own, stays, saves=NOTHING)
    once = BlockEvents(sizes=tuple(bare.sizes), entry=0, exit=ids[exit_.base],
                  forward=tuple(bare.events), calls=tuple(bare.calls),
                  work=tuple(bare.works))  # fmt: skip
    ahead, ids = forward(reel, tape, (entry,), exit_, own, {*kept, *stays}, saves=KEPT)
    events = reel.turn()
    back = BackwardPass(reel, ids, own, kept | dict.fromkeys(pins, 1), held, exit_)
    if given:
        back.grads[exit_.index].owners += 1
    back.run(tape, AttentionRecompute(back, tape, again), handed=checkpoint == HOOKS)
    return BlockWalk(
        saved=tuple((own[index].name, own[index].bytes) for index in kept),
        input_bytes=entry.bytes,
        forward=ahead,
        transient=transient,
        backward=back.high.moment,
        later=back.later.moment,
        hooks=tuple(back.hooks),
        after_first=back.after,
        pinned=pinned,
        holds_input=bool(checkpoint),
        once=once,
        script=back.script(entry, exit_, events, pins, given=given),
    )
