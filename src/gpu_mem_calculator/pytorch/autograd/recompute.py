"""Parts of a block under a checkpoint of their own: they run forward once more in backward.

- A region (core attention, an MLP) keeps its inputs and its output. It runs again when backward
  reaches it.
- Operations whose output is discarded (megatron-core 0.19.2 tensor_parallel/random.py
  CheckpointWithoutOutput) keep their inputs alone. They run again when the gradient of a later
  tensor exists, and their output is then where the operations that saved it look for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import EMPTY
from .backward import BackwardPass, PendingGradient, Recompute
from .tape import Op, Tape, Value


class Part(Struct, frozen=True, eq=False):
    """Operations that run again, and the one before whose backward they do.

    `dropped`: storages that forward frees. `outputs`: those of the outputs. `holds`: the checkpoint
    holds recomputed outputs and their gradients until the first operation has run backward.
    `inputs`: storages that torch's checkpoint by hooks keeps until the first operation that saves
    anything has run backward; it recomputes no further than the last one (`hooks`).
    """

    ops: Sequence[Op]
    trigger: Op
    dropped: frozenset[int]
    outputs: tuple[int, ...]
    holds: bool
    hooks: bool = False
    inputs: tuple[int, ...] = ()

    @property
    def packing(self) -> list[Op]:
        """The operations that save anything."""
        return [op for op in self.ops if op.packs]


def region(tape: Tape, ops: Sequence[Op], *, holds: bool) -> tuple[Part, ...]:
    """A region of the tape, which drops what it alone makes and reads; none without operations."""
    making = [op for op in ops if op.outs]
    if not making:
        return ()
    members = set(map(id, ops))
    inside = {v.base for op in ops for v in (*op.outs, *op.saves)}
    rest = (op for op in tape.ops if id(op) not in members)
    outside = {v.base for op in rest for v in (*op.ins, *op.outs, *op.saves)}
    inputs = {v.base for op in ops for v in op.ins} - {v.base for op in ops for v in op.outs}
    dropped = frozenset(inside - outside - inputs)
    return (Part(ops, making[-1], dropped, (making[-1].outs[0].base,), holds),)


def hooked(part: Part, floating: set[int]) -> Part:
    """A region under torch's checkpoint by hooks; `floating`: storages that may be its inputs."""
    made = {v.base for op in part.ops for v in op.outs}
    read = dict.fromkeys(v.base for op in part.ops for v in op.ins if v.base in floating - made)
    return replace(part, trigger=part.packing[-1], hooks=True, inputs=tuple(read))


def discard(tape: Tape, ops: Sequence[Op], *outputs: Value) -> None:
    """Discard outputs of operations here; the gradient of the tensor that was made last is waited
    for, then they run again.
    """
    trigger = next(op for op in reversed(tape.ops) if op.outs)
    inputs = {v.base for op in ops for v in op.ins} - {v.base for op in ops for v in op.outs}
    dropped = {v.base for op in ops for v in (*op.outs, *op.saves)} - inputs
    storages = tuple(value.base for value in outputs)
    tape.discarded.append(Part(ops, trigger, frozenset(dropped), storages, True))
    tape.hold(*outputs)
    tape.freed |= dict.fromkeys(storages, len(tape.ops) - 1)


class PartRecompute(Recompute):
    """Runs the parts of a block forward again, each when backward reaches its trigger."""

    def __init__(
        self, back: BackwardPass, parts: Sequence[Part], saved: set[int], leaves: Sequence[Value]
    ) -> None:
        """`saved`: storages that backward reads. `leaves`: values that outlive it, and whose
        gradients do.
        """
        self.back, self.parts, self.saved = back, parts, saved
        self.leaves = {value.base for value in leaves}
        self.storages = tuple(sorted({i for part in parts for i in part.dropped} & saved))
        self.outputs: dict[int, list[int]] = {}  # by part: recomputed outputs that it holds
        self.gradients: dict[int, list[PendingGradient]] = {}

    def unpacked(self, op: Op) -> bool:
        """Whether a part's hooks give the saved tensors of an operation away."""
        return any(part.hooks and op in part.ops for part in self.parts)

    def before_operation(self, op: Op, gradients: list[PendingGradient]) -> None:
        """Recompute the parts that wait for this operation; hold the gradients of their outputs."""
        if gradients and any(v.base in self.leaves for v in op.outs):
            gradients[0].references += 1
            self.back.left_over.append(gradients[0].tensor)
        for number, part in enumerate(self.parts):
            if not (gradients and part.dropped & self.saved):
                continue
            if op is part.trigger:
                self._forward(number, part, part.dropped & self.saved)
            if part.holds and any(v.base in part.outputs for v in op.outs):
                gradients[0].references += 1
                self.gradients.setdefault(number, []).append(gradients[0])

    def after_operation(self, op: Op) -> None:
        """Free what a part holds after its last operation in backward."""
        for number, part in enumerate(self.parts):
            if part.hooks and op is part.packing[0]:
                for index in part.inputs:
                    self.back.drop_saved(index)
            if op is part.ops[0] and number in self.gradients:
                for tensor in self.outputs.pop(number, []):
                    self.back.recorder.free(tensor)
                for index in part.outputs:
                    if index in self.storages:
                        self.back.drop_saved(index)
                for gradient in self.gradients.pop(number):
                    self.back.release(gradient)

    def _forward(self, number: int, part: Part, wanted: frozenset[int]) -> None:
        """Run a part forward, and keep what backward reads, and the outputs where they are held."""
        recorder, alive = self.back.recorder, dict[int, int]()
        last_use = {v.base: i for i, op in enumerate(part.ops) for v in (*op.ins, *op.outs)}
        stays = (*wanted, *part.outputs)
        stop = part.packing[-1] if part.hooks else None
        for i, op in enumerate(part.ops):
            if op is stop and not op.saves_late and self._alive(op, alive, part):
                break
            work = recorder.work(op.pieces)
            for value in (*op.outs, *op.saves):
                needed = value in op.outs or value.base in wanted
                if value.base == value.index and value.index not in alive and needed:
                    alive[value.index] = recorder.make(value.bytes, value.name)
            self.back.see(EMPTY, op.temp)
            recorder.over(work)
            for index in [n for n in alive if last_use.get(n) == i and n not in stays]:
                recorder.free(alive.pop(index))
            if op is stop:
                break
        if part.hooks:
            for index in [n for n in alive if n not in wanted]:
                recorder.free(alive.pop(index))
            self.back.ids |= alive
            return
        for output in part.outputs:
            if output in wanted:
                self.back.references[output] += part.holds + (output in self.leaves)
                self.back.left_over += [alive[output]] * (output in self.leaves)
            elif part.holds:
                self.outputs.setdefault(number, []).append(alive.pop(output))
            else:
                recorder.free(alive.pop(output))
        self.back.ids |= alive

    def _alive(self, op: Op, alive: dict[int, int], part: Part) -> bool:
        """Whether all that an operation saves exists before it runs."""
        made = {v.base for other in part.ops for v in (*other.outs, *other.saves)}
        return all(v.base in alive or v.base not in made for v in op.saves)
