"""What DeepSpeed makes and frees while blocks play their scripts, in the order it does."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

from ...step.block_events import HEAD
from ...step.optimizers import OPTIMIZERS
from .layout import ZeroLayout
from .sizes import ZeroSizes

GRADIENT = "gradient"  # what a tensor is for that backward has made


class TensorAllocator(Protocol):
    """Where tensors come from."""

    def make_on(self, queue: int, size: int, name: Hashable = "") -> int:
        """A new tensor on a CUDA stream; `name` says what for."""

    def free(self, tensors: Iterable[int]) -> None:
        """Tensors go, in this order."""

    def empty_cache(self) -> None:
        """Everything cached goes back to the driver."""

    def size(self, tensor: int) -> int:
        """Bytes of a tensor."""


class ZeroRank:
    """One rank of DeepSpeed: its tensors by name, and the gradients that blocks have made.

    `rank` has the bytes of what the rank trains, `sizes` the elements of each trained parameter.
    `micro` is the micro-batch at work, `shared` the head's gradient of a table that waits for the
    embedding's.
    """

    def __init__(self, plan: ZeroLayout, to: TensorAllocator) -> None:
        self.plan, self.to = plan, to
        self.held: dict[Hashable, list[int]] = {}
        self.grads: dict[tuple[int, int], int] = {}
        self.micro = 0
        self.shared = -1
        self.rank = plan.sizes
        self.sizes = [int(size) for sizes, units in plan.runs for _ in range(int(units))
                      for size in sizes]  # fmt: skip

    @property
    def last(self) -> bool:
        """Whether a step follows this micro-batch."""
        return self.micro == int(self.plan.run.micro_batches) - 1

    def make(self, name: Hashable, *sizes: int, queue: int = 0) -> None:
        """Tensors under a name."""
        made = [self.to.make_on(queue, int(size), name) for size in sizes if int(size)]
        self.held.setdefault(name, []).extend(made)

    def free(self, *names: Hashable) -> None:
        """Tensors of these names go, the first made first."""
        for name in names:
            self.to.free(self.held.pop(name, ()))

    def moment(self, *sizes: int, queue: int = 0) -> None:
        """Tensors that are there for a moment, one behind the other."""
        for size in sizes:
            self.make("moment", size, queue=queue)
            self.free("moment")

    def model(self) -> None:
        """The model as transformers builds it: weights in order, a head that is tied at the end."""
        plan, arch = self.plan, self.plan.run.arch
        base = [int(w.numel) for w in (*arch.tower, *arch.weights())]
        if plan.run.frozen:
            self.make("frozen", *(plan.width * size for size in base))
        self.make("model", *(plan.trained_width * size for size in self.sizes))
        if arch.tied and plan.builds_head and not plan.pipeline:
            self.moment(plan.width * int(arch.embedding[0].numel))

    def states(self, number: int, sizes: ZeroSizes) -> None:
        """The optimizer's states of a tensor, made by its first step."""
        row, name = OPTIMIZERS[self.plan.run.optimizer], ("states", number)
        if row.states and name not in self.held:
            self.make(name, *[int(sizes.states) // row.states] * row.states)

    def update(self, sizes: ZeroSizes) -> None:
        """The update itself."""
        self.moment(int(sizes.update))

    def gradient(self, block: int, number: int, tensor: int) -> None:
        """A weight's gradient has come to its hook; a shared table's waits for the other part."""
        if block == HEAD and number == 0 and self.plan.table:
            self.shared = tensor
        else:
            self.arrived((block, number), tensor)

    def added(self, key: tuple[int, int], tensor: int) -> None:
        """A gradient stays on the rank, or is added to the one that is there."""
        if key in self.grads:
            self.to.free((tensor,))
        else:
            self.grads[key] = tensor

    def in_order(self) -> list[int]:
        """Gradients in the optimizer's order, which is backward's turned round; none is left."""
        found = list(self.grads.values())[::-1]
        self.grads = {}
        return found

    def startup(self) -> None:
        """From an empty GPU to the first step."""
        self.model()

    def begin(self) -> None:
        """Forward begins."""

    def before(self, block: int, number: int, *, forward: bool) -> None:
        """An operation of a block is about to read weights."""

    def behind(self, block: int, number: int, *, forward: bool) -> None:
        """It has read them."""

    def arrived(self, key: tuple[int, int], tensor: int) -> None:
        """A weight's whole gradient is there."""
        self.added(key, tensor)

    def epilogue(self) -> None:
        """Backward of a micro-batch is over."""

    def step(self) -> None:
        """The optimizer's step, behind which the gradients go."""
        self.to.free(self.in_order())
