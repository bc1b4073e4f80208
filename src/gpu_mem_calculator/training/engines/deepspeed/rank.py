"""One rank of DeepSpeed: the tensors it allocates and frees while blocks run, in its order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Protocol

from ....ledger.num import Num
from ...optimizers import OPTIMIZERS
from ...step.block_events import HEAD
from .layout import ZeroLayout
from .sizes import ZeroSizes

GRADIENT = "gradient"  # the name of a gradient that backward has made


class TensorAllocator(Protocol):
    """Where a rank allocates: a stream, or a counter of bytes."""

    def make_on(self, queue: int, size: int, name: Hashable = "") -> int:
        """Allocate `size` bytes on a CUDA stream; `name` says what for."""

    def free(self, tensors: Iterable[int]) -> None:
        """Free tensors in this order."""

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache: free segments are returned to the driver."""

    def size(self, tensor: int) -> int:
        """Bytes of a tensor."""


class ZeroRank:
    """One rank of DeepSpeed: its tensors by name, and the gradients that blocks have made.

    rank: bytes of what the rank trains
    sizes: elements of each trained parameter
    tensors: tensors by name; grads: gradients by (block, number)
    micro: number of the micro-batch at work
    shared: the head's gradient of a shared table, which waits for the embedding's; -1 if none
    """

    def __init__(self, plan: ZeroLayout, to: TensorAllocator) -> None:
        self.plan, self.to = plan, to
        self.tensors: dict[Hashable, list[int]] = {}
        self.grads: dict[tuple[int, int], int] = {}
        self.micro = 0
        self.shared = -1
        self.rank = plan.sizes
        self.sizes = [
            int(size) for sizes, units in plan.runs for _ in range(int(units)) for size in sizes
        ]

    @property
    def last(self) -> bool:
        """Whether this micro-batch is the last before the optimizer's step."""
        return self.micro == int(self.plan.run.micro_batches) - 1

    def make(self, name: Hashable, *sizes: Num, queue: int = 0) -> None:
        """Allocate tensors of these bytes under a name; sizes of 0 are left out."""
        ids = [self.to.make_on(queue, int(size), name) for size in sizes if int(size)]
        self.tensors.setdefault(name, []).extend(ids)

    def free(self, *names: Hashable) -> None:
        """Free the tensors of these names, in the order of their allocation."""
        for name in names:
            self.to.free(self.tensors.pop(name, ()))

    def make_and_free(self, *sizes: Num, queue: int = 0) -> None:
        """Allocate and immediately free each size in turn."""
        for size in sizes:
            self.make("moment", size, queue=queue)
            self.free("moment")

    def model(self) -> None:
        """The model as transformers builds it: weights in order, a head of its own until it is
        tied.
        """
        plan, arch = self.plan, self.plan.run.arch
        base = [int(w.numel) for w in (*arch.tower, *arch.weights())]
        if plan.run.frozen:
            self.make("frozen", *(plan.width * size for size in base))
        self.make("model", *(plan.trained_width * size for size in self.sizes))
        if arch.tied and plan.builds_head and not plan.pipeline:
            self.make_and_free(plan.width * int(arch.embedding[0].numel))

    def states(self, number: int, sizes: ZeroSizes) -> None:
        """Allocate the optimizer's states of a tensor; its first step does."""
        row, name = OPTIMIZERS[self.plan.run.optimizer], ("states", number)
        if row.states and name not in self.tensors:
            self.make(name, *[int(sizes.states) // row.states] * row.states)

    def update(self, sizes: ZeroSizes) -> None:
        """The temporaries of the optimizer's update."""
        self.make_and_free(int(sizes.update))

    def gradient(self, block: int, number: int, tensor: int) -> None:
        """The hook of a weight's gradient; the head's gradient of a shared table waits for the
        other.
        """
        if block == HEAD and number == 0 and self.plan.table:
            self.shared = tensor
        else:
            self.arrived((block, number), tensor)

    def added(self, key: tuple[int, int], tensor: int) -> None:
        """Keep a gradient, or add it to the one of an earlier micro-batch and free it."""
        if key in self.grads:
            self.to.free((tensor,))
        else:
            self.grads[key] = tensor

    def in_order(self) -> list[int]:
        """The gradients in the optimizer's order, the reverse of backward's; none is left."""
        gradients = list(self.grads.values())[::-1]
        self.grads = {}
        return gradients

    def startup(self) -> None:
        """Start-up: from an empty GPU to the first step."""
        self.model()

    def begin(self) -> None:
        """Called when a forward begins."""

    def before(self, block: int, number: int, *, forward: bool) -> None:
        """Called before operation `number` of a block reads weights."""

    def after(self, block: int, number: int, *, forward: bool) -> None:
        """Called after the operation has read them."""

    def arrived(self, key: tuple[int, int], tensor: int) -> None:
        """Called with a weight's complete gradient."""
        self.added(key, tensor)

    def alive_tensors(self) -> list[int]:
        """The tensors that are alive between two steps."""
        assert self.shared < 0
        return [*chain.from_iterable(self.tensors.values()), *self.grads.values()]

    def regular(self, *, forward: bool) -> bool:
        """Whether equal layers change nothing but numbers of tensors and the lengths of `state`."""
        return forward

    def state(self) -> tuple[Hashable, list[int], list[int]]:
        """What decides what the rank does next, numbers of tensors, and lengths of what grows."""
        return (), [], []

    def alike(self, written: list[list[int]], count: int) -> int:
        """How many of the next `count` layers continue those between three lists of lengths."""
        return count

    def go_on(self, numbers: list[int], written: list[int], count: int) -> None:
        """Set the numbers of the state `count` layers later; lengths grow by `written` in each."""

    def has_room(self, gradients: Sequence[int]) -> bool:
        """Whether gradients of these bytes are only copied into the bucket, and do not fill it."""
        return False

    def fill(self, gradients: Sequence[int]) -> None:
        """Copy gradients of these bytes into the bucket, which has room for them."""

    def epilogue(self) -> None:
        """Called when the backward of a micro-batch is over."""

    def step(self) -> None:
        """The optimizer's step; the gradients are freed after it."""
        self.to.free(self.in_order())
