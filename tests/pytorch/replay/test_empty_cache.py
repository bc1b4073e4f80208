"""`empty_cache` between two events."""

from __future__ import annotations

from gpu_mem_calculator.pytorch.replay.replays import replay
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

MIB = 2**20


def test_segments_that_are_not_in_use_are_released() -> None:
    """40 MiB are freed and released, so 60 more do not come on top of them."""
    events = [0, ~0, 1]
    marks = [(3, "end")]
    cached = replay(AllocationStream.of(sizes=[40 * MIB, 60 * MIB], events=events, marks=marks))
    emptied = replay(
        AllocationStream.of(sizes=[40 * MIB, 60 * MIB], events=events, marks=marks, empties=[2])
    )
    assert (cached.reserved_bytes, emptied.reserved_bytes) == (100 * MIB, 60 * MIB)
