"""The rules of the allocator, one per test."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.pytorch.replay.footprint import Footprint
from gpu_mem_calculator.pytorch.replay.replays import history, replay
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import UNTIL_MARK, AllocationStream

MIB = 2**20


def reserved(
    sizes: list[int],
    events: list[int],
    conf: str = "",
    cap: int | None = None,
    *,
    fraction: bool = False,
) -> list[int]:
    """MiB reserved after each event. `fraction`: the cap is torch's memory fraction."""
    chosen = replace(AllocatorSettings.parse(conf), memory_fraction=fraction)
    steps = history(AllocationStream.of([s * MIB for s in sizes], events), chosen, cap)
    return [step // MIB for _, step in steps]


def test_a_freed_block_is_used_again() -> None:
    """A freed block stays reserved, and serves the next request that fits."""
    assert reserved([30, 30], [0, ~0, 1]) == [30, 30, 30]


def test_small_and_large_blocks_do_not_mix() -> None:
    """A free large segment does not serve a request of 1 MiB."""
    assert reserved([30, 1], [0, ~0, 1]) == [30, 30, 32]


def test_a_large_block_is_split_when_over_1_mib_is_left() -> None:
    """30 MiB serve 20 and 10; of 21 and 9 again, but 29 leaves too little to split."""
    assert reserved([30, 20, 10], [0, ~0, 1, 2])[-1] == 30
    assert reserved([30, 29, 1], [0, ~0, 1, 2])[-1] == 32


def test_a_rest_that_is_not_split_off_counts_as_allocated() -> None:
    """A request of 29 MiB that gets a block of 30 counts as 30."""
    stream = AllocationStream.of([30 * MIB, 29 * MIB], [0, ~0, 1])
    assert history(stream)[-1] == (30 * MIB, 30 * MIB)


def test_small_blocks_share_a_segment_to_the_last_512_bytes() -> None:
    """4096 blocks of 512 bytes fill 2 MiB; the next one needs another segment."""
    stream = AllocationStream.of([512] * 4097, list(range(4097)))
    steps = history(stream)
    assert (steps[4095][1], steps[4096][1]) == (2 * MIB, 4 * MIB)


def test_neighbours_are_merged_when_both_are_free() -> None:
    """Two halves of a segment, freed in either order, serve a request for the whole."""
    assert reserved([30, 15, 15, 30], [0, ~0, 1, 2, ~1, ~2, 3])[-1] == 30
    assert reserved([30, 15, 15, 30], [0, ~0, 1, 2, ~2, ~1, 3])[-1] == 30


def test_blocks_of_two_segments_are_never_merged() -> None:
    """Two free segments of 32 MiB do not serve 64 MiB."""
    assert reserved([32, 32, 64], [0, 1, ~0, ~1, 2])[-1] == 128


def test_the_smallest_block_that_fits_is_used() -> None:
    """With 40 and 30 MiB free, 28 MiB take the 30, and 38 still fit into the 40."""
    assert reserved([40, 30, 28, 38], [0, 1, ~0, ~1, 2, 3])[-1] == 70


def test_cuda_streams_do_not_share_blocks() -> None:
    """A block that was allocated on one CUDA stream does not serve another."""
    stream = AllocationStream.of([30 * MIB, 30 * MIB], [0, ~0, 1], streams=[0, 7])
    assert history(stream)[-1][1] == 60 * MIB


def used(end: int, events: list[int], marks: list[tuple[int, str]]) -> int:
    """MiB reserved for two tensors of 30 MiB, the first of them used on CUDA stream 7."""
    stream = AllocationStream.of([30 * MIB] * 2, events, marks=marks, uses=[(0, 7, end)])
    return replay(stream).reserved_bytes // MIB


def test_a_block_used_on_another_cuda_stream_is_reused_when_that_is_done() -> None:
    """`record_stream` delays the reuse of a freed block until its end, or the next mark."""
    assert used(UNTIL_MARK, [0, ~0, 1], []) == 60
    assert used(UNTIL_MARK, [0, ~0, 1], [(2, "a")]) == 30
    assert used(0, [0, ~0, 1], []) == 30
    assert used(2, [0, ~0, 1], []) == 30
    assert used(3, [0, ~0, 1], []) == 60


def test_blocks_that_wait_for_a_cuda_stream_are_not_allocated() -> None:
    """torch counts a block as freed from the call on."""
    stream = AllocationStream.of([30 * MIB] * 2, [0, ~0, 1], uses=[(0, 7, UNTIL_MARK)])
    assert replay(stream).allocated_bytes == 30 * MIB


def test_use_on_its_own_cuda_stream_delays_nothing() -> None:
    """`record_stream` with the CUDA stream that allocated the tensor does nothing."""
    stream = AllocationStream.of(
        [30 * MIB] * 2, [0, ~0, 1], streams=[7, 7], uses=[(0, 7, UNTIL_MARK)]
    )
    assert replay(stream).reserved_bytes == 30 * MIB


def test_at_the_cap_the_allocator_waits_for_all_cuda_streams() -> None:
    """Then blocks that waited for one are free."""
    stream = AllocationStream.of([30 * MIB] * 2, [0, ~0, 1], uses=[(0, 7, UNTIL_MARK)])
    footprint = replay(stream, cap=50 * MIB)
    assert (footprint.retries, footprint.failed_at, footprint.reserved_bytes) == (1, None, 30 * MIB)


def test_at_the_cap_free_segments_are_released() -> None:
    """A retry releases the whole segments that are cached, then reserves the new one."""
    assert reserved([30, 40, 60], [0, 1, ~0, ~1, 2], cap=70 * MIB) == [30, 70, 70, 70, 60]


def test_a_segment_in_use_is_not_released() -> None:
    """A split segment with a live block stays, and the run fails where that is too much."""
    stream = AllocationStream.of([s * MIB for s in (60, 30, 60)], [0, ~0, 1, 2])
    footprint = replay(stream, cap=100 * MIB)
    assert footprint.failed_at == 3
    assert footprint.retries == 1
    assert replay(stream, cap=120 * MIB).failed_at is None


def test_history_ends_where_memory_ran_out() -> None:
    """There is a row for each event before the failure."""
    assert reserved([60, 30, 60], [0, 1, 2], cap=100 * MIB) == [60, 90]


def test_oversize_blocks_are_not_split() -> None:
    """With `max_split_size_mb:20`, 60 MiB free serve neither 10 nor 30 MiB, but 50."""
    conf = "max_split_size_mb:20"
    assert reserved([60, 10], [0, ~0, 1], conf)[-1] == 70
    assert reserved([60, 30], [0, ~0, 1], conf)[-1] == 90
    assert reserved([60, 50], [0, ~0, 1], conf)[-1] == 60


def test_rounding_of_oversize_blocks_is_a_setting() -> None:
    """`max_non_split_rounding_mb:40` lets 30 MiB have a block of 60 whole."""
    conf = "max_split_size_mb:20,max_non_split_rounding_mb:40"
    stream = AllocationStream.of([60 * MIB, 30 * MIB], [0, ~0, 1])
    assert history(stream, AllocatorSettings.parse(conf))[-1] == (60 * MIB, 60 * MIB)


def test_at_the_cap_oversize_blocks_are_released_first() -> None:
    """One oversize block that is enough is released; the others stay cached, without a retry."""
    stream = AllocationStream.of([s * MIB for s in (100, 60, 30)], [0, 1, ~0, ~1, 2])
    footprint = replay(stream, AllocatorSettings.parse("max_split_size_mb:20"), cap=170 * MIB)
    steps = reserved([100, 60, 30], [0, 1, ~0, ~1, 2], "max_split_size_mb:20", 170 * MIB)
    assert (steps[-1], footprint.retries) == (130, 0)


def test_several_oversize_blocks_are_released_where_one_is_not_enough() -> None:
    """The largest first, until they are as large as the request."""
    sizes, events = [60, 50, 40, 100], [0, 1, 2, ~0, ~1, ~2, 3]
    assert reserved(sizes, events, "max_split_size_mb:20", 160 * MIB)[-1] == 140


def test_garbage_collection_releases_the_oldest_segments() -> None:
    """Above the threshold, whole segments of at least average age, before a new one is reserved;
    only where torch has a memory fraction.
    """
    sizes, events = [30, 40, 50], [0, ~0, 1, ~1, 2]
    half, most = "garbage_collection_threshold:0.5", "garbage_collection_threshold:0.9"
    assert reserved(sizes, events, half, 100 * MIB, fraction=True)[-1] == 90
    assert reserved(sizes, events, most, 200 * MIB, fraction=True)[-1] == 120
    assert reserved(sizes, events, half, fraction=True)[-1] == 120
    assert reserved(sizes, events, half, 130 * MIB)[-1] == 120


def test_the_size_of_shared_segments_is_a_setting() -> None:
    """Blocks under 10 MiB are split off segments of `large_segment_size_mb`."""
    assert reserved([5], [0], "large_segment_size_mb:40") == [40]


def test_phases_have_the_numbers_of_torchs_statistics() -> None:
    """At each mark: the peak since the last, bytes allocated, and the peak of reserved bytes."""
    stream = AllocationStream.of(
        [30 * MIB, 20 * MIB], [0, 1, ~1, ~0], marks=[(1, "model"), (3, "fwd"), (4, "bwd")]
    )
    footprint = replay(stream)
    numbers = {
        name: (p.peak_bytes // MIB, p.start_next_bytes // MIB, p.reserved_bytes // MIB)
        for name, p in footprint.phases.items()
    }
    assert numbers == {"model": (30, 30, 30), "fwd": (50, 30, 50), "bwd": (30, 0, 50)}
    assert (footprint.allocated_bytes, footprint.reserved_bytes) == (50 * MIB, 50 * MIB)


def test_tensors_without_bytes_are_skipped() -> None:
    """torch requests nothing for an empty tensor."""
    stream = AllocationStream.of([0, 30 * MIB, 0], [0, 1, 2, ~0, ~2, ~1], marks=[(3, "fwd")])
    footprint = replay(stream)
    assert (footprint.allocated_bytes, footprint.reserved_bytes) == (30 * MIB, 30 * MIB)
    assert footprint.phases["fwd"].start_next_bytes == 30 * MIB
    assert len(history(stream)) == 6


def test_an_empty_stream_takes_nothing() -> None:
    """An empty stream has an empty footprint."""
    assert replay(AllocationStream.of([], [])) == Footprint(0, 0, {})


@pytest.mark.parametrize("cap", [0, 10 * MIB])
def test_a_cap_below_the_first_request_fails_at_once(cap: int) -> None:
    """`failed_at` is the event that could not be served."""
    assert replay(AllocationStream.of([30 * MIB], [0]), cap=cap).failed_at == 0
