"""A tape as torch.compile runs it: kernels in the place of operations.

The rules of torch's partitioner (torch 2.13 torch/_functorch/partitioners.py solve_min_cut), which
decides what forward saves, and of inductor:
- matmuls and attention are kernels of their own. Their results are not computed again
  (is_compute_intensive), and what their backward reads is saved (is_materialized_backwards).
- All other operations are fused. A value is written to memory only if such a kernel reads it, or if
  it is saved.
- What the backward of fused operations reads is computed again from the nearest of: results of
  matmuls and attention, sums over rows (ban_if_reduction), sums of the residual stream
  (ban_if_used_far_apart), masks of dropout (is_random).
- Equal casts are made once (fx_passes/dedupe, _functorch/compile_utils.py fx_graph_cse). No Python
  name keeps a tensor alive, and autocast caches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ...ledger.num import EMPTY
from .tape import Op, Tape, Value

ADAPTERS = (".lora_A", ".lora_B")  # names of matmuls by an adapter's weights
REDUCTIONS = (".mean", ".variance")  # names of operations that sum over rows


def compiled_tape(tape: Tape, entry: Value, exit_: Value) -> Tape:
    """The tape of the kernels that run the operations of `tape`, with the same input and output."""
    graph = FusedGraph(tape, entry, exit_)
    fused = Tape()
    fused.count, fused.inputs_first = tape.count, tape.inputs_first
    fused.ops = list(graph.kernels())
    return fused


def delay_gradient(tape: Tape, weight: Value) -> None:
    """Delay the gradient of a weight that another block reads, too: the kernel that adds the other
    gradient, at the end, completes it.

    Where the weight was cast, its gradient waits in the bits of the cast. Else the matmul itself is
    that kernel (inductor's fx_passes/post_grad.py addmm), and what waits is the gradient of its
    output; `weight` stands for it here.
    """
    cast = next((op.outs[0] for op in tape.ops if op.ins == (weight,)), None)
    if cast is not None:
        weight.bytes, weight.bits, cast.grad = cast.bytes, cast.bits, False
        for op in tape.ops:
            op.ins = tuple(weight if value is cast else value for value in op.ins)
        return
    matmul = next(op for op in tape.ops if op.matmul and weight in op.ins)
    out = matmul.outs[0]
    weight.bytes, weight.bits = out.bytes, out.bits
    last = next(op for op in tape.ops if out in op.ins)
    last.passes, last.outs[0].bits = True, out.bits
    last.back_temp, last.back_pieces = out.bytes, (out.bytes,)


def is_kernel(op: Op) -> bool:
    """Whether an operation is a kernel of its own: a matmul, attention, the cast of a weight."""
    casts_weight = op.outs[0].weight and op.outs[0].bits < op.ins[0].bits
    return op.matmul or bool(op.kernel) or casts_weight or op.name.endswith(ADAPTERS)


class FusedGraph:
    """The operations of a tape, and which of their values are written to memory."""

    def __init__(self, tape: Tape, entry: Value, exit_: Value) -> None:
        self.entry = entry
        self.ops = [op for op in tape.ops if op.outs]
        self.values = {v.index: v for op in self.ops for v in (*op.ins, *op.outs)}
        self.makers = {v.index: op for op in self.ops for v in op.outs}
        self.same: dict[int, Value] = {}  # the first of equal casts
        self._merge_casts()
        self.stream = self._residual_stream()
        kernels = [op for op in self.ops if is_kernel(op)]
        read = (v for op in kernels for v in (*op.ins, *op.saves) if not v.param)
        self.written = {self.root(v).index for v in (*read, exit_)}
        saved = (v for op in self.ops if not is_kernel(op) for v in self.sources(op.saves))
        self.written |= {v.index for v in saved}

    def _merge_casts(self) -> None:
        first: dict[tuple[int, int], Value] = {}
        for op in self.ops:
            out = op.outs[0]
            if len(op.ins) == 1 and op.name.endswith(".to"):
                cast = first.setdefault((self.root(op.ins[0]).index, out.bits), out)
                self.same[out.index] = cast

    def root(self, value: Value) -> Value:
        """The value that owns the memory of a view, and the first of equal casts."""
        while True:
            owner = self.values.get(value.base, value)
            owner = self.same.get(owner.index, owner)
            if owner is value:
                return value
            value = owner

    def _residual_stream(self) -> set[int]:
        """The block's input, and sums of it and of branches."""
        stream = {self.entry.index}
        for op in self.ops:
            several = sum(not v.param for v in op.ins) > 1
            if op.passes and several and any(self.root(v).index in stream for v in op.ins):
                stream.add(op.outs[0].index)
        return stream

    def sources(self, values: Iterable[Value]) -> list[Value]:
        """The values from which backward computes others again, each once."""
        found: dict[int, Value] = {}
        pending = [self.root(v) for v in values]
        while pending:
            value = pending.pop(0)
            op = self.makers.get(value.index)
            final = op is None or is_kernel(op) or op.name.endswith(REDUCTIONS)
            if final or value.index in self.stream:
                if not value.param:
                    found[value.index] = value
            elif op is not None:
                pending += [self.root(v) for v in op.ins]
                pending += [v for v in op.saves if v.index not in self.makers]
        return list(found.values())

    def kernels(self) -> Iterator[Op]:
        """The kernels in order."""
        trained: set[int] = set()  # weights whose gradient a kernel makes already
        for op in self.ops:
            if is_kernel(op) and self.same.get(op.outs[0].index, op.outs[0]) is op.outs[0]:
                yield self._own_kernel(op)
            elif not is_kernel(op) and self._is_written(op.outs[0]):
                yield self._fused_kernel(op.outs[0], trained)

    def _is_written(self, value: Value) -> bool:
        return self.root(value) is value and value.index in self.written

    def _own_kernel(self, op: Op) -> Op:
        for value in op.outs:
            value.cached = False
        saves = dict.fromkeys(self.root(v) for v in op.saves)
        return replace(op, ins=tuple(self.root(v) for v in op.ins), saves=tuple(saves))

    def _fused_kernel(self, value: Value, trained: set[int]) -> Op:
        """The kernel that writes a value, from those that are written before it."""
        inputs: dict[int, Value] = {}
        saves: dict[int, Value] = {}
        pending = [self.makers[value.index]]
        seen = set()
        while pending:
            op = pending.pop(0)
            if id(op) in seen:
                continue
            seen.add(id(op))
            saves |= {v.index: v for v in self.sources(op.saves)}
            for read in map(self.root, op.ins):
                maker = self.makers.get(read.index)
                if maker is None or is_kernel(maker) or read.index in self.written:
                    inputs[read.index] = read
                else:
                    pending.append(maker)
        own = [v for v in inputs.values() if not (v.param and v.index in trained)]
        trained |= {v.index for v in own if v.param}
        maker = self.makers[value.index]
        passes = maker.passes and value.index in self.stream
        kept = tuple(saves.values()) if value.grad else ()
        return Op(
            maker.name,
            tuple(own),
            (value,),
            kept,
            passes,
            EMPTY,
            EMPTY,
            core=False,
            packs=bool(kept),
            hands_over=maker.hands_over,
        )
