"""A block as torch runs it: its tensors, and which of them each operation reads, makes, and saves
for backward.

Functions that follow a framework's code line by line write a `Tape`; `walk` then runs it forward
and backward. Sizes may be ints, arrays or `Sym`s: no decision depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from ...ledger.num import EMPTY, Bytes, Num, sized

if TYPE_CHECKING:
    from .events import BlockEvents
    from .recompute import Part


class Value(Struct, eq=False, gc=False):
    """One tensor on the tape.

    - bytes: its size; bits: of one element
    - grad: it takes a gradient
    - index: its number on the tape; base: that of the value whose storage it uses, for a view
    - param: a weight, which lives outside the block and whose gradient outlives it
    - weight: a weight, or a cast of one
    - waits: another block reads this weight, too, and its gradient waits for that block's
    - cached: autocast keeps this cast of a weight until forward ends
    """

    name: str
    bytes: Bytes
    bits: int
    grad: bool
    index: int
    base: int
    param: bool = False
    weight: bool = False
    waits: bool = False
    cached: bool = False

    def elements(self) -> Num:
        """Number of elements."""
        return self.bytes * 8 // self.bits


Temp: TypeAlias = Bytes | tuple[Bytes, ...]  # workspace; several tensors
MM, ATTENTION = "mm", "attention"  # kernels that recompute by operation may keep


class Op(Struct, eq=False, gc=False):
    """One operation: it reads `ins`, makes `outs`, and saves `saves` for its backward.

    - passes: the inputs' gradient is the output's, no new tensor
    - temp, back_temp: bytes of workspace in forward and in backward
    - core: part of core attention, which selective recompute drops
    - settle: bytes of `back_temp` that autograd's validate_outputs allocates after the
      operation's own kernel has returned
    - pieces: `temp` by tensor; back_pieces: `back_temp` by tensor, without `settle`
    - inside: workspace is allocated after the outputs, else before them
    - grads_first: backward allocates its workspace after the gradients, whatever forward does
    - product: a matmul of activations; its backward makes the second factor's gradient first
    - casts: an input whose gradient is made in a wider dtype, as workspace, and cast after the
      kernel has returned
    - views: the inputs' gradients are views, into which autograd adds no other gradient
    - inputs_first: backward makes the inputs' gradients before the weights'
    - packs: autograd saves a tensor for its backward, be it a weight
    - saves_late: it saves its inputs after its kernel has run, as an autograd.Function does
    - mask_first: a tensor that only its backward reads is made before the output
    - scales: backward multiplies each gradient by a factor, into a new tensor
    - matmul: a matrix product by a weight
    - hands_over: backward returns what the operation saved, overwritten, as the gradients of its
      inputs: what is saved is freed, and gradients of the same sizes are made
    - back_script: events of the workspace in backward, which is freed but for its last tensors
      when the gradient is made; `back_temp` is its most less that gradient
    - kernel: what torch dispatches, where recompute by operation asks for it: MM or ATTENTION
    """

    name: str
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    saves: tuple[Value, ...]
    passes: bool
    temp: Bytes
    back_temp: Bytes
    core: bool
    settle: Bytes | None = None
    pieces: tuple[Bytes, ...] = ()
    back_pieces: tuple[Bytes, ...] = ()
    inside: bool = False
    product: bool = False
    casts: Value | None = None
    views: bool = False
    inputs_first: bool = False
    packs: bool = False
    saves_late: bool = False
    mask_first: bool = False
    scales: bool = False
    matmul: bool = False
    back_script: BlockEvents | None = None
    hands_over: bool = False
    kernel: str = ""
    grads_first: bool = False


class Tape:
    """Operations in the order torch runs them, and what holds longer than they say.

    - core: operations recorded now are part of core attention
    - inputs_first: a matmul's backward makes its input's gradient before its weight's
    - checkpoint_holds: a checkpoint of a part holds its output and that output's gradient
    - regions: operations of each part that has its own checkpoint; checkpointed: torch's modules
    - discarded: parts whose outputs forward discards; freed: the operation after which it does
    - pinned: saved tensors that live as long as the graph; leaves: with their gradients
    - returned: what the block returns besides its output
    - until_end: what is named until forward ends; caches_casts: as are autocast's casts of weights
    - branch: what a branch names until it has added the residual
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.count = 0
        self.core = self.inputs_first = self.checkpoint_holds = False
        self.regions: list[list[Op]] = []
        self.checkpointed: tuple[str, ...] = ()
        self.discarded: list[Part] = []
        self.freed: dict[int, int] = {}
        self.pinned: list[Value] = []
        self.leaves: list[Value] = []
        self.returned: list[Value] = []
        self.until_end: list[Value] = []
        self.caches_casts = True  # unless autocast's cache is off
        self.branch: list[Value] = []

    def _make(self, name: str, size: Bytes, bits: int, grad: bool) -> Value:
        self.count += 1
        return Value(name, size, bits, grad, self.count, self.count)

    def value(self, name: str, elements: Num, bits: int, *, grad: bool = True) -> Value:
        """A tensor that comes from outside the block, or one that an operation only saves."""
        return self._make(name, sized(elements, bits), bits, grad)

    def param(self, name: str, elements: Num, bits: int, *, grad: bool = True) -> Value:
        """A weight; `grad`: it is trained."""
        weight = self._make(name, sized(elements, bits), bits, grad)
        weight.param = weight.weight = True
        return weight

    def weights(self) -> list[Value]:
        """Every weight that an operation reads, once."""
        return list({v.index: v for op in self.ops for v in op.ins if v.param}.values())

    def add_other_weights(self, elements: Num, bits: int) -> None:
        """Add the small weights that no operation reads, so that the tape has `elements` in all.

        The first operation with a gradient gets them, so their gradients come last.
        """
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
        elements: Num | None = None,
        bits: int = 0,
        saves: Iterable[Value] = (),
        save_out: bool = False,
        passes: bool = False,
        temp: Temp = EMPTY,
        back_temp: Temp = EMPTY,
        settle: Bytes | None = None,
        inside: bool = False,
        product: bool = False,
        casts: Value | None = None,
        views: bool = False,
        inputs_first: bool = False,
        packs: bool = False,
        saves_late: bool = False,
        mask_first: bool = False,
        scales: bool = False,
        matmul: bool = False,
        back_script: BlockEvents | None = None,
        hands_over: bool = False,
        kernel: str = "",
        grads_first: bool = False,
    ) -> Value:
        """Record an operation, and return its output.

        `elements` and `bits` are the output's; by default those of the first input. `save_out`:
        the output is saved, too. `temp` and `back_temp`: bytes of workspace, a tuple for several
        tensors. For the others see `Op`. What takes no gradient saves nothing.
        """
        first = ins[0]
        bits = bits or first.bits
        if elements is not None:
            size = sized(elements, bits)
        else:
            size = first.bytes if bits == first.bits else first.bytes * bits // first.bits
        out = self._make(name, size, bits, any(v.grad for v in ins))
        out.weight = first.weight and len(ins) == 1
        saved = (*saves, *((out,) if save_out else ()))
        packs = out.grad and (packs or bool(saved))
        saved = tuple(v for v in saved if not v.param)
        back_bytes = _total(back_temp)
        self.ops.append(
            Op(
                name,
                ins,
                (out,),
                saved if out.grad else (),  # autograd does not record what takes no gradient
                passes,
                _total(temp),
                back_bytes,
                self.core,
                settle,
                _pieces(temp),
                _pieces(back_temp) if settle is None else (back_bytes - settle,),
                inside,
                product,
                casts,
                views,
                inputs_first,
                packs,
                saves_late,
                mask_first,
                scales,
                matmul,
                back_script,
                hands_over,
                kernel,
                grads_first,
            )
        )
        return out

    def split(self, name: str, whole: Value, sizes: Iterable[tuple[str, Num]]) -> list[Value]:
        """Views of one tensor, by (name, elements). Backward joins their gradients in a new one."""
        views = []
        for view_name, elements in sizes:
            view = self._make(view_name, sized(elements, whole.bits), whole.bits, whole.grad)
            view.base = whole.base
            views.append(view)
        self.ops.append(Op(name, (whole,), tuple(views), (), False, EMPTY, EMPTY, self.core))
        return views

    def view(self, name: str, x: Value, elements: Num | None = None) -> Value:
        """A view of a tensor or of a part of it; backward copies the gradient to x's size."""
        size = x.bytes if elements is None else sized(elements, x.bits)
        view = self._make(name, size, x.bits, x.grad)
        view.base = x.base
        self.ops.append(Op(name, (x,), (view,), (), False, EMPTY, EMPTY, self.core))
        return view

    def alias(self, name: str, x: Value) -> Value:
        """A view of a whole tensor, whose gradient is passed on."""
        view = self._make(name, x.bytes, x.bits, x.grad)
        view.base = x.base
        self.ops.append(Op(name, (x,), (view,), (), True, EMPTY, EMPTY, self.core))
        return view

    def owner(self, x: Value) -> Value:
        """The value whose storage x uses: x itself, or what x is a view of."""
        made = (v for op in self.ops for v in op.outs if v.index == x.base)
        return x if x.base == x.index else next(made, x)

    def cast(self, x: Value, bits: int) -> Value:
        """x.to(dtype): x itself where it has that dtype. Only autocast narrows a trained fp32
        weight, and it caches the result (torch 2.11 autocast_mode.cpp cached_cast).
        """
        if x.bits == bits:
            return x
        out = self.op(f"{x.name}.to", x, bits=bits)
        out.cached = self.caches_casts and x.param and x.grad and x.bits == 32 > bits
        return out

    def pin(self, value: Value) -> None:
        """Keep a saved tensor as long as the graph, because an autograd function's context has it.

        torch releases what `save_for_backward` was called with, not attributes of the context
        (torch 2.11 csrc/autograd/python_function.cpp PyNode::release_variables).
        """
        self.pinned.append(value)

    def hold(self, *values: Value) -> None:
        """Keep tensors alive up to here, because Python still names them."""
        self.ops.append(Op("hold", values, (), (), False, EMPTY, EMPTY, self.core))


def _pieces(temp: Temp) -> tuple[Bytes, ...]:
    if type(temp) is int and temp == 0:
        return ()
    return temp if isinstance(temp, tuple) else (temp,)


def _total(temp: Temp) -> Bytes:
    return sum(_pieces(temp), EMPTY)
