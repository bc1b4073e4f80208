"""A tape run forward and backward: what a block keeps for backward, and its peaks.

Autograd's rules (torch 2.11, torch/csrc/autograd/engine.cpp and input_buffer.cpp):
- a tensor lives while Python names it (here until its last use) or an operation has saved it;
- in backward, an operation's saved tensors and the gradient of its output are freed after it;
- a second gradient of a tensor is added in place, or out of place where the first one is shared
  or a view (can_accumulate_inplace: a view's storage has two references);
- gradients are summed to their tensor's shape and cast to its dtype after the operation has
  returned (validate_outputs). Its saved tensors are still alive then, but not under a checkpoint,
  whose hooks have given them away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import EMPTY, Bytes
from .backward import BackwardPass
from .events import BlockEvents, EventRecorder
from .forward import run_forward, storage_owners
from .peak import PeakParts
from .recompute import PartRecompute, hooked, region
from .tape import Tape, Value

# A checkpoint around a block: none, by hooks (torch's default), or reentrant.
Checkpoint: TypeAlias = Literal["", "hooks", "reentrant"]


class BlockWalk(Struct, frozen=True, kw_only=True):
    """What a block costs, in bytes: what it keeps, and its peak in each direction.

    Peaks count all that the block itself holds then, its input and the gradient of its output
    included.

    - saved: (name, bytes) of each tensor kept from forward to backward
    - input_bytes: of the block's input
    - forward: the peak of a forward that keeps what backward needs
    - transient: the peak of a forward that keeps nothing, as under a checkpoint
    - backward: the peak of backward when new weight gradients stay
    - later: the peak of backward when weight gradients exist already: a new one is added to the
      old one and freed
    - keeps_input: the block's input is among `saved`, or a checkpoint holds it
    - hooks: for each weight gradient, its bytes and the activations alive when its hook runs
    - after_first: the peak of backward after the first weight gradient
    - pinned: the part of `saved` that stays until all of backward is over
    - holds_input: the peaks of backward are those under a checkpoint, which holds the block's
      input until the block is done
    - once: the events of a forward that keeps nothing but the casts that autocast caches, which
      are `once.left`
    - script: the events of a forward that keeps what backward needs, and of backward
    """

    saved: tuple[tuple[str, Bytes], ...]
    input_bytes: Bytes
    forward: PeakParts
    transient: PeakParts
    backward: PeakParts
    later: PeakParts
    hooks: tuple[tuple[Bytes, Bytes], ...]
    after_first: Bytes
    pinned: Bytes = EMPTY
    keeps_input: bool = False
    holds_input: bool = False
    once: BlockEvents
    script: BlockEvents

    @property
    def saved_bytes(self) -> Bytes:
        """Bytes kept from forward to backward."""
        total: Bytes = EMPTY
        for _, size in self.saved:
            total = total + size
        return total


def walk(
    tape: Tape,
    entry: Value,
    exit_: Value,
    *,
    outside: tuple[Value, ...] = (),
    recompute_core: bool = False,
    checkpoint: Checkpoint = "",
    early_stop: bool = True,
    offloaded: bool = False,
    output_grad_held: bool = False,
) -> BlockWalk:
    """Run the tape forward, then backward.

    `outside`: tensors besides `entry` that exist before it, until their last use in forward.

    `recompute_core`: a checkpoint around core attention keeps its inputs and its output, and
    recomputes the rest. `checkpoint`: one around the whole block, by hooks (torch's own,
    utils/checkpoint.py _checkpoint_hook) or reentrant; it holds the block's input. `early_stop`:
    one by hooks recomputes no further than the last tensor that backward needs. `offloaded`: the
    input is on the host meanwhile, and a copy of it is the input of the recomputed forward (torch
    2.11 autograd/graph.py save_on_cpu).
    `output_grad_held`: the caller also holds a reference to the gradient of the output, so it is
    not freed here.
    """
    owners = storage_owners(tape, entry, *outside)
    parts = [*tape.discarded]
    core = [op for op in tape.ops if op.core] if recompute_core else []
    for ops in (core, *tape.regions):
        parts += region(tape, ops, holds=tape.checkpoint_holds)
    if tape.checkpointed:
        parts = [hooked(part, floating_storages(tape, entry)) for part in parts]
    dropped = {index for part in parts for index in part.dropped}
    all_saved = {v.base: 0 for op in tape.ops for v in op.saves}
    all_saved |= {index: 0 for part in parts for index in part.inputs}
    saved = {index: count for index, count in all_saved.items() if index not in dropped}
    pins = {v.base for v in tape.pinned}
    pinned: Bytes = EMPTY
    for index in sorted(pins):
        pinned = pinned + owners[index].bytes
    kept_on_gpu = {entry.index} if checkpoint and not offloaded else set()
    once = walk_once(tape, (entry, *outside), exit_, owners, kept_on_gpu)
    holds = bool(checkpoint) and not (offloaded and checkpoint == "hooks")
    inputs = {entry.index} if holds else set()
    recorder = EventRecorder()
    stop = last_saving(tape) if checkpoint == "hooks" and early_stop else -1
    until_end = [v.base for v in tape.until_end if v.base not in saved]
    stays = {*saved, *inputs, *until_end}
    forward, ids = run_forward(
        recorder, tape, (entry, *outside), exit_, owners, stays, for_backward="keep", stop=stop
    )
    events = recorder.end_forward()
    back = BackwardPass(
        recorder, ids, owners, saved | dict.fromkeys(pins, 1), entry if holds else None, exit_
    )
    if output_grad_held:
        back.grads[exit_.index].references += 1
    for part in parts:
        for index in part.inputs:
            back.references[index] += 1
    for value in tape.leaves:
        if value.base in saved:
            back.references[value.base] += 1
            back.left_over.append(ids[value.base])
    back.run(
        tape,
        PartRecompute(back, parts, set(all_saved), tape.leaves),
        unpacked=checkpoint == "hooks",
    )
    script = back.events(entry, exit_, events, pins, output_grad_held=output_grad_held)
    script = replace(
        script,
        given=tuple(ids[v.index] for v in outside),
        until_forward_ends=tuple(ids[index] for index in until_end),
    )
    return replace(
        block_walk(back, saved, entry, forward, once, script),
        pinned=pinned,
        keeps_input=not offloaded and (entry.index in saved or bool(checkpoint)),
        holds_input=bool(checkpoint),
    )


def block_walk(
    back: BackwardPass,
    saved: Iterable[int],
    entry: Value,
    forward: PeakParts,
    once: tuple[PeakParts, BlockEvents],
    script: BlockEvents,
) -> BlockWalk:
    """The figures of a backward pass that has run, with those of forward. `saved`: the storages
    kept for it. `once`: what `walk_once` returned.
    """
    owners, (transient, events) = back.owners, once
    return BlockWalk(
        saved=tuple((owners[index].name, owners[index].bytes) for index in saved),
        input_bytes=entry.bytes,
        forward=forward,
        transient=transient,
        backward=back.peak.moment,
        later=back.later_peak.moment,
        hooks=tuple(back.hooks),
        after_first=back.after_first,
        once=events,
        script=script,
    )


def floating_storages(tape: Tape, entry: Value) -> set[int]:
    """Storages of activations: the block's input, and what operations make from it."""
    made = (v for op in tape.ops for v in op.outs if not v.weight)
    return {entry.index, *(v.base for v in made)}


def last_saving(tape: Tape) -> int:
    """The index of the last operation that saves anything: a checkpoint recomputes no further
    (torch 2.11 utils/checkpoint.py _StopRecomputationError); -1 where none saves.
    """
    return max((i for i, op in enumerate(tape.ops) if op.packs), default=-1)


def walk_once(
    tape: Tape, outside: tuple[Value, ...], exit_: Value, owners: dict[int, Value], stays: set[int]
) -> tuple[PeakParts, BlockEvents]:
    """The peak and the events of a forward after which only `stays`, the output, casts that
    autocast caches and what the model's output names are alive.
    """
    recorder = EventRecorder()
    cached = [v.index for op in tape.ops for v in op.outs if v.cached]
    cached += [v.base for v in tape.until_end]
    stays = {*stays, *cached}
    peak, ids = run_forward(recorder, tape, outside, exit_, owners, stays, for_backward="free")
    events = BlockEvents(
        sizes=tuple(recorder.sizes),
        entry=0,
        exit=ids[exit_.base],
        forward=tuple(recorder.events),
        left=tuple(ids[index] for index in cached),
        calls=tuple(recorder.calls),
        forward_matmul=recorder.forward_matmul,
        work=tuple(recorder.works),
        names=tuple(recorder.names),
    )
    return peak, events
