"""ZeRO 1 and 2, tensor by tensor: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py."""

from __future__ import annotations

from typing import NamedTuple

from .layout import ZeroLayout
from .rank import GRADIENT, TensorAllocator, ZeroRank
from .sizes import FP32, Group, norm_bytes

REDUCTION = 1  # the CUDA stream of reductions where they overlap with backward


class BucketPiece(NamedTuple):
    """A gradient in the bucket: its parameter group, its place there, and its tensor or -1."""

    group: int
    begin: int
    elements: int
    tensor: int


class Stage12Rank(ZeroRank):
    """One rank with its gradient bucket, and the gradients of its slice.

    `tight`: the GPU has no space for the flat copy beside the weights, so they are moved to the
    host first.
    """

    def __init__(self, plan: ZeroLayout, to: TensorAllocator, *, tight: bool = False) -> None:
        super().__init__(plan, to)
        self.tight = tight
        self.local = [int(group.local) for group in plan.groups]
        self.queue = REDUCTION if plan.overlap else 0
        self.place = [0] * len(self.local)  # where parameters begin whose gradients have come
        self.inside: list[BucketPiece] = []
        self.filled = 0  # elements in the bucket
        self.owned: list[int] = []  # elements of each parameter's part in this rank's slices
        self.touched = 0  # elements of those parameters
        starts = [0] * len(self.local)
        for size in self.sizes:
            group = self.group(size)
            if starts[group] < self.local[group]:
                self.owned.append(min(size, self.local[group] - starts[group]))
                self.touched += size
            starts[group] += size

    def group(self, elements: int) -> int:
        """Which of the optimizer's groups a parameter belongs to."""
        return int(elements in self.plan.apart)

    def startup(self) -> None:
        """Each group's flat copy beside its weights, then its masters (lines 449 to 576)."""
        rank = self.rank
        self.model()
        for number, tensor in enumerate(self.tensors.pop("model")):
            name = ("model", self.group(self.sizes[number]))
            self.tensors.setdefault(name, []).append(tensor)
        for number, group in enumerate(self.plan.groups):
            self.flatten(number, group)
        if self.plan.offload != "none":
            self.make("staging", rank.staging)
            return
        self.make("zeros", *(FP32 * group.local for group in self.plan.groups))
        self.free("zeros")

    def flatten(self, number: int, group: Group) -> None:
        """One group of parameters; what was freed before goes back to the driver first."""
        width, weights = self.rank.width, ("model", number)
        self.to.empty_cache()
        if self.tight:  # a scalar takes the place of each
            count = len(self.tensors.get(weights, ()))
            self.free(weights)
            self.make(weights, *[width] * count)
            self.to.empty_cache()
        self.make("flat", width * group.whole)
        self.free(weights)
        self.make("clone", width * group.local)
        if self.plan.offload != "none":
            self.free("clone")
        elif width < FP32:
            self.make("masters", FP32 * group.local)
            self.free("clone")

    def begin(self) -> None:
        """A micro-batch meets the parameters from the last one on."""
        self.place = [0] * len(self.local)
        for size in self.sizes:
            self.place[self.group(size)] += size

    def arrived(self, key: tuple[int, int], tensor: int) -> None:
        """Line 2284: the first gradient allocates the bucket; in stage 2 gradients are copied into
        it.
        """
        plan = self.plan
        if plan.contiguous and "bucket" not in self.tensors:
            self.make("bucket", *[plan.bucket_bytes] * (2 if plan.overlap else 1))
        if plan.stage == 2:
            self.into_bucket(tensor)
            return
        self.added(key, tensor)
        if plan.overlap and self.last:
            self.into_bucket(self.grads.pop(key))

    def into_bucket(self, tensor: int) -> None:
        """Line 1415: copy a gradient into the bucket; one that is larger keeps its tensor."""
        plan = self.plan
        elements = self.to.size(tensor) // plan.trained_width
        if self.filled + elements > plan.bucket:
            self.reduce()
        self.filled += elements
        group = self.group(elements)
        self.place[group] -= elements
        if plan.contiguous and elements <= plan.bucket:
            self.to.free((tensor,))
            tensor = -1
        elif plan.contiguous and plan.offload != "none":
            copy = self.to.make_on(0, self.to.size(tensor), GRADIENT)
            self.to.free((tensor,))
            tensor = copy
        self.inside.append(BucketPiece(group, self.place[group], elements, tensor))

    def reduce(self) -> None:
        """Line 2207: a flat copy is reduced over the ranks, then the slice's gradients are kept.

        What belongs to one rank alone is reduced in place (line 1555 makes one piece for each rank,
        and one piece is not copied). Gradients outside the bucket stay alive until the next
        reduction where that overlaps with backward (line 2264), in stage 1 to the end.
        """
        if not self.inside:
            return
        plan, width = self.plan, self.plan.trained_width
        self.free("previous")
        spread = {
            (one.group, at // self.local[one.group])
            for one in self.inside
            for at in (one.begin, one.begin + one.elements - 1)
        }
        pieces = len(spread) if plan.contiguous else len(self.inside)
        if pieces > 1:
            self.make_and_free(width * self.filled, queue=self.queue)
        for group, begin, size, tensor in self.inside:
            in_slice = begin < self.local[group]
            if in_slice:
                self.keep_slice(min(size, self.local[group] - begin))
            if tensor >= 0 and in_slice and not plan.contiguous:
                self.tensors.setdefault("own", []).append(tensor)
            elif tensor >= 0 and not plan.contiguous and (plan.overlap or plan.stage == 1):
                name = "previous" if plan.stage == 2 else "reduced"
                self.tensors.setdefault(name, []).append(tensor)
            elif tensor >= 0:
                self.to.free((tensor,))
        self.inside, self.filled = [], 0

    def keep_slice(self, elements: int) -> None:
        """Keep a gradient of the slice in one tensor with the others, or copy it to the host."""
        plan, width = self.plan, self.plan.trained_width
        if plan.offload != "none":
            if self.last:
                self.make_and_free(
                    8 * elements, 0 if width == 4 else 4 * elements, queue=self.queue
                )
        elif plan.contiguous and "own" not in self.tensors:
            self.make("own", width * self.touched, queue=self.queue)

    def epilogue(self) -> None:
        """Line 1020: reduce the rest, add to the gradients of earlier micro-batches, free the
        bucket.
        """
        plan = self.plan
        if plan.stage == 1 and not self.last:
            return
        if plan.pipeline and plan.contiguous:
            self.make("bucket", plan.bucket_bytes)
        if plan.stage == 1 and not plan.overlap:
            self.place = [0] * len(self.local)
            for tensor in sorted(self.in_order(), key=self._group_of):
                self.into_bucket_in_order(tensor)
        self.reduce()
        if plan.run.arch.tower and plan.contiguous and not {"own", "sum"} & self.tensors.keys():
            self.keep_slice(0)  # the slice is the tower's, whose gradients are zeros: line 2708
        if "sum" in self.tensors:
            self.free("own")
        elif "own" in self.tensors:
            self.tensors["sum"] = self.tensors.pop("own")
        self.free("bucket", "previous", "reduced")

    def _group_of(self, tensor: int) -> int:
        return self.group(self.to.size(tensor) // self.plan.trained_width)

    def into_bucket_in_order(self, tensor: int) -> None:
        """The same, from the first parameter of each group on."""
        elements = self.to.size(tensor) // self.plan.trained_width
        group = self.group(elements)
        begin = self.place[group]
        self.place[group] += elements
        self.into_bucket(tensor)
        self.inside[-1] = self.inside[-1]._replace(begin=begin)
        self.place[group] = begin + elements

    def step(self) -> None:
        """Line 3040: the norm of each piece, then the slice's gradients, flat and in fp32."""
        if self.plan.offload != "none":
            return
        rank = self.rank
        self.make_and_free(*map(norm_bytes, self.owned))
        if len(self.owned) > 1:
            self.make("flat grads", rank.step_flat)
        self.make("grad", rank.step_grad)
        self.free("flat grads")
        if not self.plan.apart:  # else another group's gradients are in the same buffer
            self.free("sum")
        self.states(0, rank)
        self.update(rank)
        self.free("grad", "sum")
