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

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from ..ledger.num import Num, choose, larger
from .tape import Op, Tape, Value

HOOKS, REENTRANT = "hooks", "reentrant"  # how a checkpoint around a block is made


class Moment(Struct, frozen=True, gc=False):
    """The highest moment of a walk, in parts: activations, parameter gradients, workspace."""

    act: Num = 0
    grad: Num = 0
    temp: Num = 0

    @property
    def total(self) -> Num:
        """All of it."""
        return self.act + self.grad + self.temp

    def or_higher(self, act: Num, grad: Num, temp: Num) -> Moment:
        """This moment, or another one where that is higher."""
        high = High(self.act, self.grad, self.temp)
        high.see(act, grad, temp)
        return high.moment


class High:
    """Keeps the highest of the moments it sees."""

    __slots__ = ("parts", "total")

    def __init__(self, act: Num = 0, grad: Num = 0, temp: Num = 0) -> None:
        self.parts: tuple[Num, Num, Num] = (act, grad, temp)
        self.total = act + grad + temp

    def see(self, act: Num, grad: Num, temp: Num) -> None:
        """Look at a moment."""
        total = act + grad + temp
        higher = total > self.total
        if higher is True:
            self.total, self.parts = total, (act, grad, temp)
        elif higher is not False:
            both = zip((act, grad, temp), self.parts, strict=True)
            self.parts = tuple(choose(higher, new, old) for new, old in both)
            self.total = choose(higher, total, self.total)

    @property
    def moment(self) -> Moment:
        """The highest one."""
        return Moment(*self.parts)


class Walk(Struct, frozen=True, kw_only=True):
    """What a block costs: what it keeps, and its highest moment in each direction.

    Moments count everything the block itself holds then, its input and the gradient of its
    output included. `later` is backward when the parameters' gradients are there already: a new
    one is added to the old one and goes. `transient` is a forward that keeps nothing, as under
    a checkpoint. `holds_input`: backward's moments are those under a checkpoint, which holds the
    block's input until the block is done.
    """

    saved: tuple[tuple[str, Num], ...]
    input_bytes: Num
    forward: Moment
    transient: Moment
    backward: Moment
    later: Moment
    hooks: tuple[tuple[Num, Num], ...]  # each weight gradient made, and what is alive then
    after_first: Num  # the highest moment of backward after the first weight gradient
    pinned: Num = 0  # the part of what is kept that stays until all of backward is done
    holds_input: bool = False

    @property
    def saved_bytes(self) -> Num:
        """Everything kept from forward to backward."""
        total: Num = 0
        for _, size in self.saved:
            total = total + size
        return total


def walk(
    tape: Tape, entry: Value, exit_: Value, *, recompute_core: bool = False, checkpoint: str = ""
) -> Walk:
    """Run the tape forward, then backward.

    `recompute_core` is a checkpoint around core attention: it keeps what comes in and what
    goes out, and makes the rest again. `checkpoint` is one around all of it: HOOKS (torch's own,
    utils/checkpoint.py _checkpoint_hook) or REENTRANT.
    """
    owners = _owners(tape, entry)
    saved = {v.base for op in tape.ops for v in op.saves}
    dropped = _dropped(tape) if recompute_core else set()
    kept = dict.fromkeys((v.base for op in tape.ops for v in op.saves
                          if v.base not in dropped), 0)  # fmt: skip
    again = tuple(sorted(dropped & saved))
    pins = {v.base for v in tape.pinned}
    pinned: Num = 0
    for index in sorted(pins):
        pinned = pinned + owners[index].bytes
    forward, transient = _forward(tape, entry, exit_, owners, kept)
    return Walk(
        saved=tuple((owners[index].name, owners[index].bytes) for index in kept),
        input_bytes=entry.bytes,
        forward=forward,
        transient=transient,
        pinned=pinned,
        holds_input=bool(checkpoint),
        **_backward(tape, exit_, owners, kept | dict.fromkeys(pins, 1), again,
                    entry if checkpoint else None, handed=checkpoint == HOOKS),
    )  # fmt: skip


def _owners(tape: Tape, entry: Value) -> dict[int, Value]:
    """Every tensor with a storage of its own."""
    owners = {entry.index: entry}
    for op in tape.ops:
        for value in (*op.outs, *op.saves):
            if value.base == value.index:
                owners[value.index] = value
    return owners


def _dropped(tape: Tape) -> set[int]:
    """Storages that only core attention makes and reads, its masks among them."""
    inside = {v.base for op in tape.ops if op.core for v in (*op.outs, *op.saves)}
    outside = {v.base for op in tape.ops if not op.core for v in (*op.ins, *op.outs, *op.saves)}
    return inside - outside


def _forward(
    tape: Tape, entry: Value, exit_: Value, owners: dict[int, Value], kept: dict[int, int]
) -> tuple[Moment, Moment]:
    """The highest moment of a forward that keeps what backward needs, and of one that
    keeps nothing.
    """
    last: dict[int, int] = {}
    for i, op in enumerate(tape.ops):
        for value in (*op.outs, *op.ins):
            last[value.base] = i
    last.pop(exit_.base, None)
    ends: dict[int, list[Value]] = {}
    for index, i in last.items():
        if index in owners:
            ends.setdefault(i, []).append(owners[index])
    alive: Num = entry.bytes
    bare: Num = entry.bytes
    high, low = High(alive), High(bare)
    there = {entry.index}
    for i, op in enumerate(tape.ops):
        for value in op.outs:
            if value.base == value.index:
                there.add(value.index)
                alive, bare = alive + value.bytes, bare + value.bytes
        for value in op.saves:
            if value.base not in there:  # made by the operation for its backward alone
                there.add(value.base)
                if value.base in kept:
                    alive = alive + value.bytes
        high.see(alive, 0, op.temp)
        low.see(bare, 0, op.temp)
        for value in ends.get(i, ()):
            bare = bare - value.bytes
            if value.index not in kept:
                alive = alive - value.bytes
    return high.moment, low.moment


def _backward(
    tape: Tape, exit_: Value, owners: dict[int, Value], kept: dict[int, int],
    again: tuple[int, ...], held: Value | None, *, handed: bool,
) -> dict[str, Any]:  # fmt: skip
    """The highest moments of backward, by the names they have in a `Walk`.

    `again` is made once more when backward reaches core attention, then let go as used. `held` is
    the input that a checkpoint holds; hooks do not count it. `handed`: saved tensors are gone when
    an operation has returned.
    """
    kept = kept if held is None else kept | {held.index: kept.get(held.index, 0) + 1}
    outside: Num = 0 if held is None else held.bytes
    holders = kept | dict.fromkeys(again, 0)
    for op in tape.ops:
        for value in op.saves:
            if value.base in holders:
                holders[value.base] += 1
    alive: Num = exit_.bytes
    for index in kept:
        alive = alive + owners[index].bytes
    weights: Num = 0
    grads: dict[int, list[Num]] = {exit_.index: [exit_.bytes, 1]}  # bytes, owners
    high, later = High(alive), High(alive)
    after: Num = 0
    hooks: list[tuple[Num, Num]] = []
    for op in reversed(tape.ops):
        flows = [grads.pop(v.index) for v in op.outs if v.index in grads]
        made: list[tuple[Value, list[Num]]] = []
        new: list[Value] = []
        if flows:
            if op.core:
                for index in again:
                    alive = alive + owners[index].bytes
                again = ()
            now: Num = 0
            for value in op.ins:
                if not value.grad:
                    continue
                if value.param:
                    now = now + value.bytes
                    new.append(value)
                elif op.passes and value.bits == op.outs[0].bits:
                    flows[0][1] += 1
                    made.append((value, flows[0]))
                else:
                    alive = alive + value.bytes
                    made.append((value, [value.bytes, 1]))
            weights = weights + now
            for act, temp in _inside(op, alive, holders, owners, handed=handed):
                high.see(act, weights, temp)
                later.see(act, now, temp)
            if hooks:
                after = larger(after, alive + op.back_temp)
        for flow in flows:
            flow[1] -= 1
            if flow[1] == 0:
                alive = alive - flow[0]
        for value in op.saves:
            if value.base in holders:
                holders[value.base] -= 1
                if holders[value.base] == 0:
                    alive = alive - owners[value.base].bytes
        for value, grad in made:
            alive, most = _accumulate(grads, value, grad, alive)
            high.see(most, weights, 0)
            later.see(most, 0, 0)
        hooks += [(value.bytes, alive - outside) for value in new]
    return {
        "backward": high.moment,
        "later": later.moment,
        "hooks": tuple(hooks),
        "after_first": after,
    }


def _inside(
    op: Op, alive: Num, holders: dict[int, int], owners: dict[int, Value], *, handed: bool
) -> Iterator[tuple[Num, Num]]:
    """An operation's moments in backward, as activations and workspace: inside, and behind it."""
    if not handed or op.settle is None:
        yield alive, op.back_temp
        return
    yield alive, op.back_temp - op.settle
    gone: Num = 0
    for index in {v.base for v in op.saves if v.base in holders}:
        if holders[index] == sum(v.base == index for v in op.saves):
            gone = gone + owners[index].bytes
    yield alive - gone, op.back_temp


def _accumulate(
    grads: dict[int, list[Num]], value: Value, grad: list[Num], alive: Num
) -> tuple[Num, Num]:
    """Add a gradient to what its tensor has already; returns what is alive, and was at most."""
    there = grads.get(value.index)
    if there is None:
        grads[value.index] = grad
        return alive, alive
    most = alive
    if there[1] > 1:  # shared: the sum is a new tensor
        alive = most = alive + value.bytes
        there[1] -= 1
        grads[value.index] = [value.bytes, 1]
    grad[1] -= 1
    if grad[1] == 0:
        alive = alive - grad[0]
    return alive, most
