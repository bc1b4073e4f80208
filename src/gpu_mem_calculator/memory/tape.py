"""A block as torch runs it: which tensors an operation makes, keeps for backward, and lets go.

A `Tape` is written by functions that follow a framework's code line by line. Walking it forward
and backward with autograd's own rules gives what the block keeps, and its highest moment in
each direction. Sizes may be ints, arrays or `Sym`s: only the structure is looked at.

Autograd's rules (torch 2.11, torch/csrc/autograd/engine.cpp and input_buffer.cpp):
- a tensor lives while Python names it (until its last use here) or an operation has saved it;
- in backward an operation's saved tensors go when it has run, and so does its output's gradient;
- a second gradient for a tensor is added in place, out of place where the first one is shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from ..ledger.num import Num, choose, larger


class Value(Struct, eq=False):
    """One tensor on the tape. A view has the storage of its `base`."""

    name: str
    bytes: Num
    bits: int
    grad: bool  # whether a gradient flows to it
    index: int
    base: int
    param: bool = False  # a weight: it lives outside the block, its gradient outlives it

    def elements(self) -> Num:
        """Elements, from the bytes."""
        return self.bytes * 8 // self.bits


class Op(Struct, eq=False):
    """One operation: reads `ins`, makes `outs`, keeps `saves`."""

    name: str
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    saves: tuple[Value, ...]
    passes: bool  # the gradient goes to the inputs as it is, no new tensor
    temp: Num  # workspace in forward
    back_temp: Num  # workspace in backward
    core: bool  # part of core attention, which selective recompute drops


class Moment(Struct, frozen=True):
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
        higher = act + grad + temp > self.total
        if higher is True:
            return Moment(act, grad, temp)
        if higher is False:
            return self
        return Moment(
            choose(higher, act, self.act),
            choose(higher, grad, self.grad),
            choose(higher, temp, self.temp),
        )


class Walk(Struct, frozen=True, kw_only=True):
    """What a block costs: what it keeps, and its highest moment in each direction.

    Moments count everything the block itself holds then, its input and the gradient of its
    output included. `later` is backward when the parameters' gradients are there already: a new
    one is added to the old one and goes. `transient` is a forward that keeps nothing, as under
    a checkpoint.
    """

    saved: tuple[tuple[str, Num], ...]
    input_bytes: Num
    forward: Moment
    transient: Moment
    backward: Moment
    later: Moment
    hooks: tuple[tuple[Num, Num], ...]  # each weight gradient made, and what is alive then
    after_first: Num  # the highest moment of backward after the first weight gradient

    @property
    def saved_bytes(self) -> Num:
        """Everything kept from forward to backward."""
        total: Num = 0
        for _, size in self.saved:
            total = total + size
        return total


class Tape:
    """Records operations in the order torch runs them."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.count = 0
        self.core = False

    def _make(self, name: str, size: Num, bits: int, grad: bool) -> Value:
        self.count += 1
        return Value(name, size, bits, grad, self.count, self.count)

    def value(self, name: str, elements: Num, bits: int, *, grad: bool = True) -> Value:
        """A tensor that comes from outside the block, or one that an operation only saves."""
        return self._make(name, elements * bits // 8, bits, grad)

    def param(self, name: str, elements: Num, bits: int, *, grad: bool = True) -> Value:
        """A weight."""
        made = self._make(name, elements * bits // 8, bits, grad)
        made.param = True
        return made

    def op(
        self,
        name: str,
        *ins: Value,
        elements: Num = None,
        bits: int = 0,
        saves: Iterable[Value] = (),
        save_out: bool = False,
        passes: bool = False,
        temp: Num = 0,
        back_temp: Num = 0,
    ) -> Value:
        """Record an operation; its output is like its first input unless said otherwise."""
        first = ins[0]
        bits = bits or first.bits
        if elements is not None:
            size = elements * bits // 8
        else:
            size = first.bytes if bits == first.bits else first.bytes * bits // first.bits
        out = self._make(name, size, bits, any(v.grad for v in ins))
        kept = tuple(v for v in saves if not v.param) + ((out,) if save_out else ())
        self.ops.append(Op(name, ins, (out,), kept, passes, temp, back_temp, self.core))
        return out

    def split(self, name: str, whole: Value, sizes: Iterable[tuple[str, Num]]) -> list[Value]:
        """Views of one tensor (elements each). Backward joins their gradients in a new one."""
        parts = []
        for part, elements in sizes:
            view = self._make(part, elements * whole.bits // 8, whole.bits, whole.grad)
            view.base = whole.base
            parts.append(view)
        self.ops.append(Op(name, (whole,), tuple(parts), (), False, 0, 0, self.core))
        return parts

    def cast(self, x: Value, bits: int) -> Value:
        """x.to(dtype): nothing where the dtype is the same already."""
        return x if x.bits == bits else self.op(f"{x.name}.to", x, bits=bits)

    def hold(self, *values: Value) -> None:
        """Python still names these tensors here."""
        self.ops.append(Op("hold", values, (), (), False, 0, 0, self.core))

    def walk(self, entry: Value, exit_: Value, *, recompute_core: bool = False) -> Walk:
        """Run the tape forward, then backward.

        `recompute_core` is a checkpoint around core attention: it keeps what comes in and what
        goes out, and makes the rest again.
        """
        owners = self._owners(entry)
        saved = {v.base for op in self.ops for v in op.saves}
        dropped = self._dropped() if recompute_core else set()
        kept = dict.fromkeys((v.base for op in self.ops for v in op.saves
                              if v.base not in dropped), 0)  # fmt: skip
        again = tuple(sorted(dropped & saved))
        forward, transient = self._forward(entry, exit_, owners, kept)
        return Walk(
            saved=tuple((owners[index].name, owners[index].bytes) for index in kept),
            input_bytes=entry.bytes,
            forward=forward,
            transient=transient,
            **self._backward(exit_, owners, kept, again),
        )

    def _owners(self, entry: Value) -> dict[int, Value]:
        """Every tensor with a storage of its own."""
        owners = {entry.index: entry}
        for op in self.ops:
            for value in (*op.outs, *op.saves):
                if value.base == value.index:
                    owners[value.index] = value
        return owners

    def _dropped(self) -> set[int]:
        """Storages that only core attention makes and reads, its masks among them."""
        inside = {v.base for op in self.ops if op.core for v in (*op.outs, *op.saves)}
        outside = {v.base for op in self.ops if not op.core for v in (*op.ins, *op.outs, *op.saves)}
        return inside - outside

    def _forward(
        self, entry: Value, exit_: Value, owners: dict[int, Value], kept: dict[int, int]
    ) -> tuple[Moment, Moment]:
        """The highest moment of a forward that keeps what backward needs, and of one that
        keeps nothing.
        """
        last: dict[int, int] = {}
        for i, op in enumerate(self.ops):
            for value in (*op.outs, *op.ins):
                last[value.base] = i
        last.pop(exit_.base, None)
        ends: dict[int, list[Value]] = {}
        for index, i in last.items():
            if index in owners:
                ends.setdefault(i, []).append(owners[index])
        alive: Num = entry.bytes
        bare: Num = entry.bytes
        high, low = Moment(alive), Moment(bare)
        there = {entry.index}
        for i, op in enumerate(self.ops):
            for value in op.outs:
                if value.base == value.index:
                    there.add(value.index)
                    alive, bare = alive + value.bytes, bare + value.bytes
            for value in op.saves:
                if value.base not in there:  # made by the operation for its backward alone
                    there.add(value.base)
                    if value.base in kept:
                        alive = alive + value.bytes
            high = high.or_higher(alive, 0, op.temp)
            low = low.or_higher(bare, 0, op.temp)
            for value in ends.get(i, ()):
                bare = bare - value.bytes
                if value.index not in kept:
                    alive = alive - value.bytes
        return high, low

    def _backward(
        self, exit_: Value, owners: dict[int, Value], kept: dict[int, int], again: tuple[int, ...]
    ) -> dict[str, Any]:
        """The highest moments of backward, by the names they have in a `Walk`.

        `again` is made once more when backward reaches core attention, then let go as used.
        """
        holders = kept | dict.fromkeys(again, 0)
        for op in self.ops:
            for value in op.saves:
                if value.base in holders:
                    holders[value.base] += 1
        alive: Num = exit_.bytes
        for index in kept:
            alive = alive + owners[index].bytes
        weights: Num = 0
        grads: dict[int, list[Num]] = {exit_.index: [exit_.bytes, 1]}  # bytes, owners
        high = later = Moment(alive)
        after: Num = 0
        hooks: list[tuple[Num, Num]] = []
        for op in reversed(self.ops):
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
                high = high.or_higher(alive, weights, op.back_temp)
                later = later.or_higher(alive, now, op.back_temp)
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
                high = high.or_higher(most, weights, 0)
                later = later.or_higher(most, 0, 0)
            hooks += [(value.bytes, alive) for value in new]
        return {"backward": high, "later": later, "hooks": tuple(hooks), "after_first": after}


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
