"""A block's tensors in the order in which torch makes and frees them.

A walk writes to an `EventRecorder`, which returns `BlockEvents`: numbers of tensors in order, `i`
for an allocation and `~i` for its free.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from ..ledger.num import Num, nothing
from ..ledger.remember import fields_only_ints

Call = tuple[int, int, Num]


class BlockEvents(Struct, frozen=True, kw_only=True, cache_hash=True, dict=True):
    """One block, forward and backward, its tensors numbered from 0.

    `entry` and `exit` are the block's input and output, `exit_grad` and `entry_grad` their
    gradients (none where the input takes no gradient). The entry and the exit's gradient come
    from the neighbours. `drops`: behind so many events of backward a weight's gradient goes,
    where one is there already that it is added to; else it stays. `hooks`: how many events have
    passed when the gradient's hook runs. `left` is still there when backward is over. `calls` and
    `back_calls`: events before and behind each operation that reads weights, and their elements.
    """

    sizes: tuple[Num, ...]
    entry: int
    exit: int
    forward: tuple[int, ...]
    backward: tuple[int, ...] = ()
    exit_grad: int = -1
    entry_grad: int = -1
    drops: tuple[tuple[int, int], ...] = ()
    hooks: tuple[int, ...] = ()
    shared: int = -1  # the gradient of a weight that another block reads, too
    matmul: int = -1  # events of backward when the first weight has been read
    left: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    back_calls: tuple[Call, ...] = ()
    work: tuple[int, ...] = ()  # tensors that are workspace

    @cached_property
    def only_ints(self) -> bool:
        """Whether all sizes are plain numbers."""
        return fields_only_ints(self)

    def later(self) -> tuple[int, ...]:
        """Backward where the weights' gradients are added to older ones and go, but for a shared
        one's.
        """
        events: list[int] = []
        done = 0
        for position, tensor in self.drops:
            events += self.backward[done:position]
            if tensor != self.shared:
                events.append(~tensor)
            done = position
        return (*events, *self.backward[done:])


class EventRecorder:
    """Writes a script, and counts the activations that are alive."""

    __slots__ = ("act", "before", "calls", "events", "sizes", "works")

    def __init__(self) -> None:
        self.sizes: list[Num] = []
        self.events: list[int] = []
        self.calls: list[Call] = []
        self.before: tuple[Call, ...] = ()  # of forward, when backward runs
        self.act: Num = 0
        self.works: list[int] = []

    def number(self, size: Num) -> int:
        """A tensor that comes from elsewhere."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def weight(self, size: Num) -> int:
        """The gradient of a weight, which is no activation."""
        made = self.number(size)
        self.events.append(made)
        return made

    def make(self, size: Num) -> int:
        """A new tensor."""
        self.act = self.act + size
        return self.weight(size)

    def free(self, tensor: int) -> None:
        """A tensor goes."""
        self.events.append(~tensor)
        self.act = self.act - self.sizes[tensor]

    def turn(self) -> tuple[int, ...]:
        """Forward is over: its events."""
        events, self.events = tuple(self.events), []
        self.before, self.calls = tuple(self.calls), []
        return events

    def called(self, begin: int, weights: Iterable[Num]) -> None:
        """An operation has read weights of so many elements since `begin`."""
        elements = list(weights)
        if elements:
            self.calls.append((begin, len(self.events), sum(elements)))

    def work(self, sizes: Iterable[Num]) -> list[int]:
        """Workspace, which is no activation."""
        made = [self.weight(size) for size in sizes if not nothing(size)]
        if made:
            self.works += made
        return made

    def over(self, tensors: Iterable[int]) -> None:
        """Workspace goes."""
        self.events += [~tensor for tensor in tensors]
