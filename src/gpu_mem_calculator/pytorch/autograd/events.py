"""A block's tensors in the order in which torch allocates and frees them.

A walk writes to an `EventRecorder`, and its events are read from `BlockEvents`: a list of tensor
numbers, `i` for the allocation of tensor i and `~i` for its free.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from ...ledger.num import EMPTY, Bytes, Num, larger, nothing
from ...ledger.remember import fields_only_ints

# An operation that reads weights: events before it, events after it, elements of the weights.
Call = tuple[int, int, Num]


class BlockEvents(Struct, frozen=True, kw_only=True, cache_hash=True, dict=True):
    """The events of one block, forward and backward. Its tensors are numbered from 0.

    - sizes: bytes of each tensor
    - entry, exit: the block's input and output; the block before it allocates `entry`
    - forward, backward: the events
    - exit_grad, entry_grad: the gradients of output and input; the block after it allocates
      `exit_grad`; `entry_grad` is -1 where the input takes no gradient
    - drops: (event index, tensor) pairs. When gradients accumulate into an existing buffer, the
      new weight gradient is freed after that many events of backward; otherwise it stays alive
    - hooks: for each weight gradient, how many events of backward have passed when its hook runs
    - shared: the gradient of a weight that another block reads, too, or -1
    - matmul: events of backward when the first weight has been read, or -1
    - forward_matmul: events of forward when its first matmul has its output, or -1
    - left: tensors that are still alive after backward
    - calls, back_calls: the operations of each direction that read weights
    - work: the tensors that are workspace
    - recompute_at: events of backward before a checkpointed block runs forward again
    - given: tensors besides `entry` that exist before forward, which frees them
    - entry_saved_before: the block before it saves `entry`, and counts it
    - until_forward_ends: tensors of forward that are freed when the model's forward ends
    - names: (tensor, its name on the tape), where it has one
    """

    sizes: tuple[Bytes, ...]
    entry: int
    exit: int
    forward: tuple[int, ...]
    backward: tuple[int, ...] = ()
    exit_grad: int = -1
    entry_grad: int = -1
    drops: tuple[tuple[int, int], ...] = ()
    hooks: tuple[int, ...] = ()
    shared: int = -1
    matmul: int = -1
    forward_matmul: int = -1
    left: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    back_calls: tuple[Call, ...] = ()
    work: tuple[int, ...] = ()
    recompute_at: int = 0
    given: tuple[int, ...] = ()
    entry_saved_before: bool = False
    until_forward_ends: tuple[int, ...] = ()
    names: tuple[tuple[int, str], ...] = ()

    @property
    def entry_bytes(self) -> Bytes:
        """Bytes of the input that this block counts, and of what else exists before forward."""
        entry = EMPTY if self.entry_saved_before else self.sizes[self.entry]
        return sum((self.sizes[tensor] for tensor in self.given), entry)

    def before_recompute(self) -> Bytes:
        """Bytes of gradients, besides the output's, that exist when a checkpoint recomputes."""
        total = EMPTY
        for event in self.backward[: self.recompute_at]:
            total = total + (self.sizes[event] if event >= 0 else -self.sizes[~event])
        return total

    def forward_peak(self, end: int) -> Bytes:
        """The most bytes alive during the first `end` events of forward."""
        peak = total = self.entry_bytes
        for event in self.forward[:end]:
            total = total + (self.sizes[event] if event >= 0 else -self.sizes[~event])
            peak = larger(peak, total)
        return peak

    @cached_property
    def only_ints(self) -> bool:
        """Whether all sizes are ints: no array, no `Sym`."""
        return fields_only_ints(self)

    @cached_property
    def size_array(self) -> array[int]:
        """The sizes of one run, as a stream has them."""
        return array("q", map(int, self.sizes))

    @cached_property
    def frees_entry(self) -> bool:
        """Whether the block frees its input."""
        return ~self.entry in self.forward or ~self.entry in self.backward

    @cached_property
    def later(self) -> tuple[int, ...]:
        """Backward's events where weight gradients are added to existing ones and freed; the
        gradient of a shared weight stays.
        """
        events: list[int] = []
        begin = 0
        for end, tensor in self.drops:
            events += self.backward[begin:end]
            if tensor != self.shared:
                events.append(~tensor)
            begin = end
        return (*events, *self.backward[begin:])


class EventRecorder:
    """Records events, and counts the bytes of activations that are alive (`act`)."""

    __slots__ = (
        "act",
        "calls",
        "events",
        "forward_calls",
        "forward_matmul",
        "names",
        "sizes",
        "works",
    )

    def __init__(self) -> None:
        self.sizes: list[Bytes] = []
        self.events: list[int] = []
        self.calls: list[Call] = []
        self.forward_calls: tuple[Call, ...] = ()
        self.forward_matmul = -1
        self.act: Bytes = EMPTY
        self.works: list[int] = []
        self.names: list[tuple[int, str]] = []

    def forward_only(self, left: Iterable[int]) -> BlockEvents:
        """What was recorded as a block without input, output and backward; `left` stays alive."""
        return BlockEvents(
            sizes=tuple(self.sizes), entry=-1, exit=-1, forward=tuple(self.events), left=tuple(left)
        )

    def repeat(self, block: BlockEvents) -> list[int]:
        """Record a block that was recorded alone, without input and output, as if its operations
        ran again; the tensors that it leaves.
        """
        shift = len(self.sizes)
        self.sizes += block.sizes
        self.events += [e + shift if e >= 0 else e - shift for e in block.forward]
        return [tensor + shift for tensor in block.left]

    def table_backward(self, entry: int, exit_grad: int, grads: Iterable[int]) -> BlockEvents:
        """What was recorded as the backward of an embedding, which makes `grads`; `entry`: the
        head's gradient of the table that it shares, or -1.
        """
        return BlockEvents(
            sizes=tuple(self.sizes),
            entry=entry,
            exit=-1,
            exit_grad=exit_grad,
            forward=(),
            backward=tuple(self.events),
            drops=tuple((0, tensor) for tensor in grads),
            work=tuple(self.works),
        )

    def number(self, size: Bytes) -> int:
        """Number a tensor of `size` bytes that is allocated elsewhere."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def weight(self, size: Bytes, name: str = "") -> int:
        """Allocate a tensor that is not an activation, such as a weight's gradient."""
        tensor = self.number(size)
        self.events.append(tensor)
        if name:
            self.names.append((tensor, name))
        return tensor

    def make(self, size: Bytes, name: str = "") -> int:
        """Allocate an activation."""
        self.act = self.act + size
        return self.weight(size, name)

    def free(self, tensor: int) -> None:
        """Free an activation."""
        self.events.append(~tensor)
        self.act = self.act - self.sizes[tensor]

    def end_forward(self) -> tuple[int, ...]:
        """The events of forward; what follows is backward."""
        events, self.events = tuple(self.events), []
        self.forward_calls, self.calls = tuple(self.calls), []
        return events

    def record_call(self, begin: int, weights: Iterable[Num]) -> None:
        """Record that an operation, since event `begin`, has read weights of these elements."""
        elements = list(weights)
        if elements:
            self.calls.append((begin, len(self.events), sum(elements)))

    def work(self, sizes: Iterable[Bytes]) -> list[int]:
        """Allocate workspace, which is not an activation; sizes of 0 allocate nothing."""
        tensors = [self.weight(size) for size in sizes if not nothing(size)]
        if tensors:
            self.works += tensors
        return tensors

    def over(self, tensors: Iterable[int]) -> None:
        """Free tensors that are not activations."""
        self.events += [~tensor for tensor in tensors]
