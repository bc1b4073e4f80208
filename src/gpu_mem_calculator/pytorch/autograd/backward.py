"""A tape run backward: which gradients and saved tensors are alive, by autograd's rules."""

from __future__ import annotations

from ...ledger.num import EMPTY, Bytes, larger
from .events import BlockEvents, EventRecorder
from .peak import PeakTracker
from .tape import Op, Tape, Value


class PendingGradient:
    """A gradient that the operation before still waits for.

    `tensor`: its number among the block's tensors. `references`: how many values share it.
    `view`: it is a view of the tensor that owns the memory.
    """

    __slots__ = ("references", "tensor", "view")

    def __init__(self, tensor: int, *, view: bool = False) -> None:
        self.tensor, self.references, self.view = tensor, 1, view


class Recompute:
    """What runs forward again during backward; this base class recomputes nothing."""

    storages: tuple[int, ...] = ()  # saved tensors that forward dropped and backward needs

    def before_operation(self, op: Op, gradients: list[PendingGradient]) -> None:
        """Called before `op` runs backward, with the gradients of its outputs."""

    def after_operation(self, op: Op) -> None:
        """Called after `op` has run backward."""

    def unpacked(self, op: Op) -> bool:
        """Whether hooks give the saved tensors of `op` away."""
        return False


class BackwardPass:
    """The state of a backward pass: tensors alive, gradients pending, and the peaks so far.

    `ids` numbers the tensors of the forward pass, `owners` has the value that owns each storage.
    `peak` is that of a first backward, whose weight gradients stay. `later_peak` is that of one
    whose weight gradients are added to existing ones and freed.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        ids: dict[int, int],
        owners: dict[int, Value],
        references: dict[int, int],
        checkpoint_input: Value | None,
        exit_: Value,
    ) -> None:
        """Start with the gradient of the output and with every saved tensor alive.

        `references`: for each saved storage, references other than those of operations.
        `checkpoint_input`: the input that a checkpoint holds; what `hooks` lists leaves it out.
        """
        self.recorder, self.ids, self.owners = recorder, ids, owners
        self.references = dict(references)
        self.uncounted: Bytes = EMPTY
        self.checkpoint_input = None if checkpoint_input is None else checkpoint_input.index
        if checkpoint_input is not None:
            self.uncounted, index = checkpoint_input.bytes, checkpoint_input.index
            self.references[index] = references.get(index, 0) + 1
        self.exit_grad = recorder.number(exit_.bytes)
        self.grads = {exit_.index: PendingGradient(self.exit_grad)}
        recorder.act = exit_.bytes
        for index in self.references:
            recorder.act = recorder.act + owners[index].bytes
        self.weight_grads: Bytes = EMPTY
        self.peak, self.later_peak = PeakTracker(recorder.act), PeakTracker(recorder.act)
        self.after_first: Bytes = EMPTY
        self.hooks: list[tuple[Bytes, Bytes]] = []
        self.hook_events: list[int] = []
        self.drops: list[tuple[int, int]] = []
        self.matmul = self.shared = -1
        self.recompute_at = 0
        self.with_checkpoint: list[int] = []  # tensors that the checkpoint frees with its input
        self.left_over: list[int] = []  # tensors that something outside the block refers to
        self.waiting: Bytes = EMPTY  # gradients of weights that another block reads, too

    def run(self, tape: Tape, recompute: Recompute, *, unpacked: bool) -> None:
        """Run every operation of the tape, last to first.

        Tensors that `recompute` makes are freed after their last use. `unpacked`: a checkpoint's
        hooks have given saved tensors away, so they are freed when an operation returns, before
        its gradients are summed and cast; and the checkpoint frees the block's input with the last
        saved tensor, which is that of the first operation that saves any. It recomputes when the
        last operation that saves any runs backward.
        """
        self.references |= dict.fromkeys(recompute.storages, 0)
        self.inputs_first = tape.inputs_first
        for op in tape.ops:
            for value in op.saves:
                if value.base in self.references:
                    self.references[value.base] += 1
        packing = [op for op in tape.ops if op.packs] if unpacked else []
        first, last = packing[:1], packing[-1:]
        for op in reversed(tape.ops):
            if last and op is last[0]:
                self.recompute_at = len(self.recorder.events)
            gradients = [self.grads.pop(v.index) for v in op.outs if v.index in self.grads]
            recompute.before_operation(op, gradients)
            own = unpacked or recompute.unpacked(op)
            self._operation(op, gradients, unpacked=own, last=op in first)
            recompute.after_operation(op)

    def _operation(
        self, op: Op, gradients: list[PendingGradient], *, unpacked: bool, last: bool
    ) -> None:
        """Compute the gradients of the inputs, then free the outputs' and the saved tensors."""
        recorder, begin = self.recorder, len(self.recorder.events)
        input_grads: list[tuple[Value, PendingGradient]] = []
        weight_grads: list[tuple[Bytes, int]] = []
        casts: list[Value] = []
        if gradients:
            if op.hands_over:
                self._free_saved(op)
            late = op.inside or op.grads_first
            work = [] if late else self._work(op)
            for value in self._gradient_order(op):
                if not value.grad:
                    continue
                if value is op.casts:
                    casts.append(value)
                elif value.param:
                    named = f"gradient of {value.name}"
                    weight_grads.append((value.bytes, recorder.weight(value.bytes, named)))
                    self.shared = weight_grads[-1][1] if value.waits else self.shared
                elif op.passes and value.bits == op.outs[0].bits:
                    gradients[0].references += 1
                    gradients[0].view |= op.views
                    input_grads.append((value, gradients[0]))
                else:
                    made = self._make_gradient(value, op)
                    input_grads.append((value, made))
                if self.matmul < 0 and any(value.weight for value in op.ins):
                    self.matmul = len(recorder.events)
            work += recorder.work(op.back_pieces) if late else []
            new_bytes = sum((size for size, _ in weight_grads), EMPTY)
            cast = self._peaks_of(op, new_bytes, work, casts, unpacked=unpacked)
            input_grads += zip(casts, cast, strict=True)
        for gradient in gradients:
            self.release(gradient)
        if not (gradients and op.hands_over):
            self._free_saved(op)
        if last:
            self._free_checkpoint_input()
        self.drops += [(len(recorder.events), tensor) for _, tensor in weight_grads]
        for value, gradient in input_grads:
            self._accumulate(value, gradient)
        for value in op.ins:
            if gradients and value.waits and value.grad:
                self.waiting = self.waiting + value.bytes
        self.hooks += [(size, recorder.act - self.uncounted) for size, _ in weight_grads]
        self.hook_events += [len(recorder.events)] * len(weight_grads)
        recorder.record_call(begin, [v.elements() for v in op.ins if v.param and gradients])

    def _free_saved(self, op: Op) -> None:
        """Free what only this operation still saves."""
        for value in reversed(op.saves):
            if value.base in self.references:
                self.references[value.base] -= 1
                if self.references[value.base] == 0:
                    self.recorder.free(self.ids[value.base])

    def _gradient_of(self, value: Value) -> int:
        """Allocate the gradient of an activation."""
        return self.recorder.make(value.bytes, f"gradient of {value.name}")

    def _make_gradient(self, value: Value, op: Op) -> PendingGradient:
        """A new tensor for an input's gradient, and before it the one that is yet to be scaled."""
        unscaled = self.recorder.make(value.bytes) if op.scales else None
        made = PendingGradient(self._gradient_of(value), view=op.views)
        if unscaled is not None:
            self.see(EMPTY, EMPTY)
            self.recorder.free(unscaled)
        return made

    def _work(self, op: Op) -> list[int]:
        """Allocate an operation's workspace; the tensors of it that are still alive."""
        recorder, script = self.recorder, op.back_script
        if script is None:
            return recorder.work(op.back_pieces)
        first = len(recorder.sizes)
        recorder.sizes += script.sizes
        recorder.works += range(first, len(recorder.sizes))
        recorder.events += [e + first if e >= 0 else e - first for e in script.forward]
        return [tensor + first for tensor in script.left]

    def _free_checkpoint_input(self) -> None:
        """The checkpoint drops its reference to the block's input."""
        if self.checkpoint_input is not None:
            index, self.uncounted = self.checkpoint_input, EMPTY
            self.references[index] -= 1
            if self.references[index] == 0:
                self.recorder.free(self.ids[index])
        for tensor in self.with_checkpoint:
            self.recorder.free(tensor)

    def drop_saved(self, index: int) -> None:
        """Drop one reference to a saved storage, and free it with the last."""
        self.references[index] -= 1
        if self.references[index] == 0:
            self.recorder.free(self.ids[index])

    def _gradient_order(self, op: Op) -> tuple[Value, ...]:
        """The inputs in the order of their gradients: torch's matmul without a bias has the
        weight's first.
        """
        if op.product:
            return op.ins[::-1]
        if not (self.inputs_first or op.inputs_first) and len(op.ins) > 1:
            return tuple(sorted(op.ins, key=lambda v: not v.weight))
        return op.ins

    def release(self, gradient: PendingGradient) -> None:
        """Drop one reference to a gradient, and free it with the last."""
        gradient.references -= 1
        if gradient.references == 0:
            self.recorder.free(gradient.tensor)

    def _peaks_of(
        self, op: Op, new_bytes: Bytes, work: list[int], casts: list[Value], *, unpacked: bool
    ) -> list[PendingGradient]:
        """Look at the peaks of an operation: in its kernel, and after it while gradients are summed
        and cast. `new_bytes`: of its weight gradients. Frees its workspace.

        Returns the gradients of `casts`, which are cast after the kernel has returned.
        """
        self.weight_grads = self.weight_grads + new_bytes
        settles = op.settle is not None or bool(casts)
        if settles:
            self.see(new_bytes, op.back_temp if op.settle is None else op.back_temp - op.settle)
        if settles and unpacked:
            for index in dict.fromkeys(v.base for v in op.saves if v.base in self.references):
                if self.references[index] == sum(v.base == index for v in op.saves):
                    self.references[index] = 0
                    self.recorder.free(self.ids[index])
        cast = [PendingGradient(self._gradient_of(value)) for value in casts]
        work += self.recorder.work(() if op.settle is None else (op.settle,))
        self.see(new_bytes, op.back_temp)
        if self.hooks:
            self.after_first = larger(self.after_first, self.recorder.act + op.back_temp)
        if work:
            self.recorder.over(work[::-1])
        return cast

    def see(self, new_bytes: Bytes, temp: Bytes) -> None:
        """Compare both peaks with this instant: `new_bytes` of weight gradients, `temp` of
        workspace.
        """
        self.peak.see(self.recorder.act, self.weight_grads, temp)
        self.later_peak.see(self.recorder.act, new_bytes + self.waiting, temp)

    def _accumulate(self, value: Value, gradient: PendingGradient) -> None:
        """Add a gradient to the one that a value already has, if any."""
        first = self.grads.get(value.index)
        if first is None:
            self.grads[value.index] = gradient
        else:
            apart = first.references > 1 or first.view  # the sum is a new tensor
            if apart:
                self.grads[value.index] = PendingGradient(self._gradient_of(value))
            self.see(EMPTY, EMPTY)
            self.release(gradient)
            if apart:
                self.release(first)

    def events(
        self,
        entry: Value,
        exit_: Value,
        forward: tuple[int, ...],
        pinned: set[int],
        *,
        output_grad_held: bool,
    ) -> BlockEvents:
        """The events of `forward`, and those of this backward."""
        entry_grad = self.grads.get(entry.index)
        left = [self.ids[index] for index in sorted(pinned)]
        left += [*[self.exit_grad] * output_grad_held, *self.left_over]
        return BlockEvents(
            sizes=tuple(self.recorder.sizes),
            entry=self.ids[entry.index],
            exit=self.ids[exit_.base],
            forward=forward,
            backward=tuple(self.recorder.events),
            exit_grad=self.exit_grad,
            entry_grad=-1 if entry_grad is None else entry_grad.tensor,
            drops=tuple(self.drops),
            hooks=tuple(self.hook_events),
            shared=self.shared,
            matmul=self.matmul,
            forward_matmul=self.recorder.forward_matmul,
            left=tuple(left),
            calls=self.recorder.forward_calls,
            back_calls=tuple(self.recorder.calls),
            work=tuple(self.recorder.works),
            recompute_at=self.recompute_at,
            names=tuple(self.recorder.names),
        )
