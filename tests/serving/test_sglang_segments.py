"""Segments of torch's allocator for a server's lasting tensors, computed by hand."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.ledger.units import MIB
from gpu_mem_calculator.run.weights.rank_weights import reserved_bytes, segment_bytes


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 1, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_a_tensor_that_fits_into_no_rest_has_a_segment(size: int, segment: int) -> None:
    """2 MiB up to 1 MiB, 20 MiB below 10 MiB, then whole steps of 2 MiB."""
    assert segment_bytes(size) == segment


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        ([MIB, MIB], 2),
        ([MIB, MIB, 1], 4),
        ([MIB, MIB - 512, 512], 2),
        ([MIB, MIB - 512, 513], 4),
        ([9 * MIB, 9 * MIB, 2 * MIB], 20),
        ([9 * MIB, 9 * MIB, 2 * MIB + 1], 40),
        ([9 * MIB, 10 * MIB], 20),
        ([9 * MIB, 9 * MIB, 9 * MIB, 2 * MIB, 11 * MIB], 40),  # the smallest rest first
        ([9 * MIB, MIB], 22),  # small tensors have segments of their size
    ],
)
def test_the_rest_of_a_segment_serves_the_next_tensor_that_fits(
    sizes: list[int], total: int
) -> None:
    """Segments of tensors that are never freed, in MiB."""
    assert reserved_bytes(sizes) == total * MIB
