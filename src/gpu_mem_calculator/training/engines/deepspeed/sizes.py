"""Bytes of one rank's states under ZeRO. The ledger and the stream both take them from here.

They follow from the trained elements of each parameter group, the ranks that share it, and the
optimizer, for any model. deepspeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.num import EMPTY, Bytes, Num, sized
from ...optimizers import OPTIMIZERS, state_bytes
from ...step.optimizer_temps import step_temp_bytes
from .shards import padded_elements, shard_elements, slice_elements

FP32, FP64 = 4, 8  # bytes of an element


class Group(Struct, frozen=True):
    """Elements of one parameter group on a rank.

    elements: of the model's parameters
    whole: of the rank's flat copy, padding included
    local: of the part that the rank steps
    """

    elements: Num
    whole: Num
    local: Num


def replicated_group(elements: Num) -> Group:
    """Stage 0: every rank has and steps everything."""
    return Group(elements, elements, elements)


def sliced_group(elements: Num, ranks: Num) -> Group:
    """Stages 1 and 2, and BF16_Optimizer: a flat copy, of which each rank steps a slice."""
    return Group(elements, padded_elements(elements, ranks), slice_elements(elements, ranks))


def sharded_group(elements: Num, counts: Mapping[int, Num], ranks: Num) -> Group:
    """Stage 3: a rank has and steps a shard of every parameter. `counts`: number of parameters of
    each size.
    """
    local = shard_elements(counts, ranks)
    return Group(elements, local, local)


class ZeroSizes(Struct, frozen=True, kw_only=True):
    """Bytes of one rank, for all of its parameter groups together.

    width: bytes of a trained weight
    elements, whole, local: as in `Group`
    largest: elements of the largest trained parameter
    """

    width: int
    elements: Num
    whole: Num
    local: Num
    largest: Num
    optimizer: str
    implementation: str = "fused"

    @property
    def unflattened(self) -> Bytes:
        """Bytes of the trained weights as the model makes them, one by one."""
        return sized(self.elements, 8 * self.width)

    @property
    def flat(self) -> Bytes:
        """Bytes of the weights that stay: a flat copy, or in stage 3 the shards."""
        return sized(self.whole, 8 * self.width)

    @property
    def clone(self) -> Bytes:
        """Bytes of the weights that the rank steps, in their dtype: a copy before the cast to
        masters, or after the step.
        """
        return sized(self.local, 8 * self.width)

    @property
    def masters(self) -> Bytes:
        """Bytes of the fp32 master weights."""
        return sized(self.local, 32)

    @property
    def states(self) -> Bytes:
        """Bytes of the optimizer states."""
        return state_bytes(OPTIMIZERS[self.optimizer], self.local, 32)

    @property
    def step_flat(self) -> Bytes:
        """Bytes of the flat gradients that the rank steps, if they are narrower than fp32, before
        the cast.
        """
        return sized(self.local, 8 * self.width) if self.width < FP32 else EMPTY

    @property
    def step_grad(self) -> Bytes:
        """Bytes of the gradients that the rank steps, in fp32."""
        return sized(self.local, 32)

    @property
    def update(self) -> Bytes:
        """Bytes of the update's temporaries: none with FusedAdam, a copy with torch's foreach."""
        row = OPTIMIZERS[self.optimizer]
        return step_temp_bytes(row, self.implementation, self.local, self.local, 32)

    @property
    def staging(self) -> Bytes:
        """Bytes of the buffer in which gradients are copied to an offloaded optimizer."""
        return sized(self.largest, 8 * self.width)

    def stepping(self, local: Num) -> ZeroSizes:
        """The sizes when the rank steps `local` elements at once: a sub-group of stage 3."""
        return replace(self, local=local)


def zero_sizes(
    groups: Iterable[Group],
    *,
    width: int,
    largest: Num,
    optimizer: str,
    implementation: str = "fused",
) -> ZeroSizes:
    """The sizes of a rank, summed over its parameter groups."""
    first, *others = groups
    return ZeroSizes(
        width=width,
        elements=sum((group.elements for group in others), first.elements),
        whole=sum((group.whole for group in others), first.whole),
        local=sum((group.local for group in others), first.local),
        largest=largest,
        optimizer=optimizer,
        implementation=implementation,
    )


def norm_bytes(elements: Num) -> Bytes:
    """Bytes of the fp64 copy of a gradient for its norm (zero/utils.py:59)."""
    return sized(elements, 64)
