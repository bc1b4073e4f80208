"""Running a tape backward: which gradients and saved tensors are alive, by autograd's rules."""

from __future__ import annotations

from ..ledger.num import Num, larger
from .events import BlockEvents, EventRecorder
from .peak import PeakTracker
from .tape import Op, Tape, Value


class PendingGradient:
    """A gradient on its way: its tensor, and how many operations it still waits for."""

    __slots__ = ("owners", "tensor")

    def __init__(self, tensor: int) -> None:
        self.tensor, self.owners = tensor, 1


class Recompute:
    """What runs forward again in the middle of a backward: nothing, unless a checkpoint says so."""

    again: tuple[int, ...] = ()  # what backward reads and forward has not kept

    def before(self, op: Op, flows: list[PendingGradient]) -> None:
        """Backward has come to an operation."""

    def behind(self, op: Op) -> None:
        """An operation is done."""


class BackwardPass:
    """The run of a tape backward: what is alive, which gradients wait, the highest moments."""

    def __init__(
        self,
        reel: EventRecorder,
        ids: dict[int, int],
        owners: dict[int, Value],
        kept: dict[int, int],
        held: Value | None,
        exit_: Value,
    ) -> None:
        """`held` is the input that a checkpoint holds; hooks do not count it."""
        self.reel, self.ids, self.owners = reel, ids, owners
        self.kept = kept if held is None else kept | {held.index: kept.get(held.index, 0) + 1}
        self.outside: Num = 0 if held is None else held.bytes
        self.exit_grad = reel.number(exit_.bytes)
        self.grads = {exit_.index: PendingGradient(self.exit_grad)}
        reel.act = exit_.bytes
        for index in self.kept:
            reel.act = reel.act + owners[index].bytes
        self.weights: Num = 0
        self.high, self.later = PeakTracker(reel.act), PeakTracker(reel.act)
        self.after: Num = 0
        self.hooks: list[tuple[Num, Num]] = []
        self.passed: list[int] = []  # events when each hook runs
        self.drops: list[tuple[int, int]] = []
        self.matmul = self.shared = -1
        self.waiting: Num = 0

    def run(self, tape: Tape, rerun: Recompute, *, handed: bool) -> None:
        """From the last operation to the first.

        What `rerun` makes again is let go as used. `handed`: saved tensors are gone when an
        operation has returned.
        """
        self.holders = self.kept | dict.fromkeys(rerun.again, 0)
        self.inputs_first = tape.inputs_first
        for op in tape.ops:
            for value in op.saves:
                if value.base in self.holders:
                    self.holders[value.base] += 1
        for op in reversed(tape.ops):
            flows = [self.grads.pop(v.index) for v in op.outs if v.index in self.grads]
            rerun.before(op, flows)
            self._operation(op, flows, handed=handed)
            rerun.behind(op)

    def _operation(self, op: Op, flows: list[PendingGradient], *, handed: bool) -> None:
        """Gradients of the inputs are made, the output's and what was saved go."""
        reel, begin = self.reel, len(self.reel.events)
        made: list[tuple[Value, PendingGradient]] = []
        new: list[Num] = []
        late: list[Value] = []
        if flows:
            work = [] if op.inside else reel.work(op.back_pieces)
            order = op.ins  # torch's own matmul makes the gradient of the weight first
            if op.product:
                order = op.ins[::-1]
            elif not self.inputs_first and len(order) > 1:
                order = tuple(sorted(op.ins, key=lambda v: not v.weight))
            for value in order:
                if not value.grad:
                    continue
                if value is op.casts:
                    late.append(value)
                elif value.param:
                    new.append((value.bytes, reel.weight(value.bytes)))
                    self.shared = new[-1][1] if value.waits else self.shared
                elif op.passes and value.bits == op.outs[0].bits:
                    flows[0].owners += 1
                    made.append((value, flows[0]))
                else:
                    made.append((value, PendingGradient(reel.make(value.bytes))))
                if self.matmul < 0 and any(value.weight for value in op.ins):
                    self.matmul = len(reel.events)
            work += reel.work(op.back_pieces) if op.inside else []
            flows_late = self._moments(op, sum(s for s, _ in new), work, late, handed=handed)
            made += zip(late, flows_late, strict=True)
        for flow in flows:
            self.let_go(flow)
        for value in reversed(op.saves):
            if value.base in self.holders:
                self.holders[value.base] -= 1
                if self.holders[value.base] == 0:
                    reel.free(self.ids[value.base])
        self.drops += [(len(reel.events), tensor) for _, tensor in new]
        for value, flow in made:
            self._accumulate(value, flow)
        for value in op.ins:
            self.waiting = self.waiting + (
                value.bytes if flows and value.waits and value.grad else 0
            )
        self.hooks += [(size, reel.act - self.outside) for size, _ in new]
        self.passed += [len(reel.events)] * len(new)
        reel.called(begin, [v.elements() for v in op.ins if v.param and flows])

    def let_go(self, flow: PendingGradient) -> None:
        """One that waited for a gradient has it."""
        flow.owners -= 1
        if flow.owners == 0:
            self.reel.free(flow.tensor)

    def _moments(
        self, op: Op, now: Num, work: list[int], late: list[Value], *, handed: bool
    ) -> list[PendingGradient]:
        """An operation at its highest: inside it and, where its results settle later, behind it.

        Returns the gradients that are cast then.
        """
        self.weights = self.weights + now
        settles = op.settle is not None or bool(late)
        if settles:
            self.see(now, op.back_temp if op.settle is None else op.back_temp - op.settle)
        if settles and handed:
            for index in dict.fromkeys(v.base for v in op.saves if v.base in self.holders):
                if self.holders[index] == sum(v.base == index for v in op.saves):
                    self.holders[index] = 0
                    self.reel.free(self.ids[index])
        cast = [PendingGradient(self.reel.make(value.bytes)) for value in late]
        work += self.reel.work(() if op.settle is None else (op.settle,))
        self.see(now, op.back_temp)
        if self.hooks:
            self.after = larger(self.after, self.reel.act + op.back_temp)
        if work:
            self.reel.over(work[::-1])
        return cast

    def see(self, now: Num, temp: Num) -> None:
        """Look at a moment."""
        self.high.see(self.reel.act, self.weights, temp)
        self.later.see(self.reel.act, now + self.waiting, temp)

    def _accumulate(self, value: Value, flow: PendingGradient) -> None:
        """Add a gradient to what its tensor has already."""
        there = self.grads.get(value.index)
        if there is None:
            self.grads[value.index] = flow
        else:
            if there.owners > 1:  # shared: the sum is a new tensor
                there.owners -= 1
                self.grads[value.index] = PendingGradient(self.reel.make(value.bytes))
            self.see(0, 0)
            self.let_go(flow)

    def script(
        self, entry: Value, exit_: Value, forward: tuple[int, ...], pins: set[int], *, given: bool
    ) -> BlockEvents:  # fmt: skip
        """Both directions, written down."""
        there = self.grads.get(entry.index)
        left = [self.ids[index] for index in sorted(pins)] + [self.exit_grad] * given
        return BlockEvents(
            sizes=tuple(self.reel.sizes), entry=self.ids[entry.index], exit=self.ids[exit_.base],
            forward=forward, backward=tuple(self.reel.events), exit_grad=self.exit_grad,
            entry_grad=-1 if there is None else there.tensor, drops=tuple(self.drops),
            hooks=tuple(self.passed), shared=self.shared, matmul=self.matmul, left=tuple(left),
            calls=self.reel.before, back_calls=tuple(self.reel.calls), work=tuple(self.reel.works),
        )  # fmt: skip
