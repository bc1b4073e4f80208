"""Sizes of what one rank of ZeRO holds. The ledger and the stream both take them from here.

They follow from the trained elements of each parameter group, the ranks that share it, and the
optimizer, whatever model the parameters come from. deepspeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import Num
from ...step.optimizers import OPTIMIZERS, state_bytes, step_temp_bytes
from .shards import padded, shard_elements, slice_elements

FP32, FP64 = 4, 8  # bytes of an element


class Group(Struct, frozen=True):
    """Elements of one parameter group on a rank.

    `elements`: as the model has them; `whole`: in the rank's flat copy, padding included; `own`:
    those that the rank steps.
    """

    elements: Num
    whole: Num
    own: Num


def replicated(elements: Num) -> Group:
    """Stage 0: every rank has and steps everything."""
    return Group(elements, elements, elements)


def sliced(elements: Num, ranks: Num) -> Group:
    """Stages 1 and 2, and BF16_Optimizer: a flat copy of all, of which a rank steps a slice."""
    return Group(elements, padded(elements, ranks), slice_elements(elements, ranks))


def sharded(elements: Num, counts: Mapping[int, Num], ranks: Num) -> Group:
    """Stage 3: a rank has and steps a shard of every parameter. `counts`: parameters by size."""
    own = shard_elements(counts, ranks)
    return Group(elements, own, own)


class ZeroSizes(Struct, frozen=True, kw_only=True):
    """Bytes of one rank, for all of its parameter groups together.

    `width`: bytes of a trained weight; `elements`, `whole` and `own` as in `Group`; `largest`:
    elements of the largest trained parameter.
    """

    width: int
    elements: Num
    whole: Num
    own: Num
    largest: Num
    optimizer: str
    implementation: str = "fused"

    @property
    def unflattened(self) -> Num:
        """The trained weights as the model makes them, one by one."""
        return self.width * self.elements

    @property
    def flat(self) -> Num:
        """The weights that stay: a flat copy, or in stage 3 the shards."""
        return self.width * self.whole

    @property
    def clone(self) -> Num:
        """The rank's own weights, before they are cast to masters or behind the step."""
        return self.width * self.own

    @property
    def masters(self) -> Num:
        """fp32 copies of the rank's own weights."""
        return FP32 * self.own

    @property
    def states(self) -> Num:
        """The optimizer's states."""
        return state_bytes(OPTIMIZERS[self.optimizer], self.own, 32)

    @property
    def step_flat(self) -> Num:
        """Own gradients of less than 32 bits, flat, before they are cast."""
        return self.width * self.own if self.width < FP32 else 0

    @property
    def step_grad(self) -> Num:
        """Own gradients in fp32, as the optimizer takes them."""
        return FP32 * self.own

    @property
    def update(self) -> Num:
        """What the update itself needs: nothing with FusedAdam, a copy with torch's foreach."""
        row = OPTIMIZERS[self.optimizer]
        return step_temp_bytes(row, self.implementation, self.own, self.own, 32)

    @property
    def staging(self) -> Num:
        """The buffer through which gradients go to an offloaded optimizer."""
        return self.width * self.largest

    def stepping(self, own: Num) -> ZeroSizes:
        """The same rank when it steps fewer elements at once: a sub-group of stage 3."""
        return replace(self, own=own)


def zero_sizes(
    groups: Iterable[Group], *, width: int, largest: Num, optimizer: str,
    implementation: str = "fused",
) -> ZeroSizes:  # fmt: skip
    """The sizes of a rank with some parameter groups."""
    first, *others = groups
    elements, whole, own = first.elements, first.whole, first.own
    for group in others:
        elements, whole = elements + group.elements, whole + group.whole
        own = own + group.own
    return ZeroSizes(width=width, elements=elements, whole=whole, own=own, largest=largest,
                     optimizer=optimizer, implementation=implementation)  # fmt: skip


def norm_bytes(elements: Num) -> Num:
    """The fp64 copy of a gradient whose norm is taken (zero/utils.py:59)."""
    return FP64 * elements


def bucket_bytes(width: int, elements: Num) -> Num:
    """A bucket that gradients of a micro-batch are gathered in (zero/stage_1_and_2.py:3256)."""
    return width * elements
