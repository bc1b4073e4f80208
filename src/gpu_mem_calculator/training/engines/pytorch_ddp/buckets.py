"""Sizes of DDP's gradient buckets."""

from __future__ import annotations

from collections.abc import Sequence

from ....ledger.num import EMPTY, Bytes
from ....ledger.units import MIB
from ...step.broadcast import fill_buckets

FIRST_BYTES, BUCKET_BYTES = MIB, 25 * MIB  # limits of the first bucket, of the others


def gradient_buckets(sizes: Sequence[Bytes]) -> list[Bytes]:
    """Bytes of the buckets from the second forward on. `sizes`: of the gradients, in the order in
    which the first backward has made them.
    """
    return [sum(bucket, EMPTY) for bucket in fill_buckets(sizes, FIRST_BYTES, BUCKET_BYTES)]
