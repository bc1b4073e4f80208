"""A block as torch runs it: which tensors an operation makes, reads, and keeps for backward.

A `Tape` is written by functions that follow a framework's code line by line; `walk` then runs it
forward and backward. Sizes may be ints, arrays or `Sym`s: only the structure is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ..ledger.num import Num


class Value(Struct, eq=False, gc=False):
    """One tensor on the tape. A view has the storage of its `base`."""

    name: str
    bytes: Num
    bits: int
    grad: bool  # whether a gradient flows to it
    index: int
    base: int
    param: bool = False  # a weight: it lives outside the block, its gradient outlives it
    weight: bool = False  # a weight, or a cast of one
    waits: bool = False  # another block reads this weight, too: its gradient waits for that one's

    def elements(self) -> Num:
        """Elements, from the bytes."""
        return self.bytes * 8 // self.bits


class Op(Struct, eq=False, gc=False):
    """One operation: reads `ins`, makes `outs`, keeps `saves`."""

    name: str
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    saves: tuple[Value, ...]
    passes: bool  # the gradient goes to the inputs as it is, no new tensor
    temp: Num  # workspace in forward
    back_temp: Num  # workspace in backward
    core: bool  # part of core attention, which selective recompute drops
    settle: Num = None  # the part of back_temp that comes when the operation has returned
    pieces: tuple[Num, ...] = ()  # temp, tensor by tensor
    back_pieces: tuple[Num, ...] = ()  # back_temp, but for what settles
    inside: bool = False  # workspace is made behind the results
    product: bool = False  # a matmul: backward makes the second factor's gradient first
    casts: Value | None = None  # an input whose gradient is made wide, and cast on the way out


class Tape:
    """Records operations in the order torch runs them."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.count = 0
        self.core = False
        self.inputs_first = False  # a matmul's backward makes its input's gradient first
        self.core_held = False  # a checkpoint of core attention holds its output and gradient
        self.pinned: list[Value] = []
        self.returned: list[Value] = []  # what a block returns beside its output

    def _make(self, name: str, size: Num, bits: int, grad: bool) -> Value:
        self.count += 1
        return Value(name, size, bits, grad, self.count, self.count)

    def value(self, name: str, elements: Num, bits: int, *, grad: bool = True) -> Value:
        """A tensor that comes from outside the block, or one that an operation only saves."""
        return self._make(name, elements * bits // 8, bits, grad)

    def param(self, name: str, elements: Num, bits: int, *, grad: bool = True) -> Value:
        """A weight."""
        made = self._make(name, elements * bits // 8, bits, grad)
        made.param = made.weight = True
        return made

    def weights(self) -> list[Value]:
        """Every weight that an operation reads."""
        return list({v.index: v for op in self.ops for v in op.ins if v.param}.values())

    def rest(self, elements: Num, bits: int) -> None:
        """Small weights that no operation on the tape has named: their gradients come last."""
        named: Num = 0
        for value in self.weights():
            named = named + value.elements()
        left = elements - named
        if int(left) > 0:
            first = next(op for op in self.ops if op.outs and op.outs[0].grad)
            first.ins = (*first.ins, self.param("other weights", left, bits))

    def op(
        self,
        name: str,
        *ins: Value,
        elements: Num = None,
        bits: int = 0,
        saves: Iterable[Value] = (),
        save_out: bool = False,
        passes: bool = False,
        temp: Num | tuple[Num, ...] = 0,
        back_temp: Num | tuple[Num, ...] = 0,
        settle: Num = None,
        inside: bool = False,
        product: bool = False,
        casts: Value | None = None,
    ) -> Value:
        """Record an operation; its output is like its first input unless said otherwise.

        A workspace of several tensors is given as a tuple. `inside`: a kernel makes it behind
        its results, else it is made before them. `product`: a matmul of activations. `casts`:
        this input's gradient is made wide, as workspace, and cast when the operation has returned.
        """
        first = ins[0]
        bits = bits or first.bits
        if elements is not None:
            size = elements * bits // 8
        else:
            size = first.bytes if bits == first.bits else first.bytes * bits // first.bits
        out = self._make(name, size, bits, any(v.grad for v in ins))
        out.weight = first.weight and len(ins) == 1
        kept = tuple(v for v in saves if not v.param) + ((out,) if save_out else ())
        if not out.grad:  # autograd does not record it
            kept = ()
        now, back = _together(temp), _together(back_temp)
        self.ops.append(
            Op(name, ins, (out,), kept, passes, now, back, self.core, settle, _apart(temp),
               _apart(back_temp) if settle is None else (back - settle,), inside,
               product, casts)
        )  # fmt: skip
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

    def pin(self, value: Value) -> None:
        """An autograd function's context names this saved tensor: it goes with the graph.

        torch lets go of what `save_for_backward` was given, not of attributes of the context
        (torch 2.11 csrc/autograd/python_function.cpp PyNode::release_variables).
        """
        self.pinned.append(value)

    def hold(self, *values: Value) -> None:
        """Python still names these tensors here."""
        self.ops.append(Op("hold", values, (), (), False, 0, 0, self.core))


def _apart(temp: Num | tuple[Num, ...]) -> tuple[Num, ...]:
    if type(temp) is int and temp == 0:
        return ()
    return temp if isinstance(temp, tuple) else (temp,)


def _together(temp: Num | tuple[Num, ...]) -> Num:
    total: Num = 0
    for size in _apart(temp):
        total = total + size
    return total
