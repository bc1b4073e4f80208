"""`expandable_segments:True`."""

from __future__ import annotations

from msgspec.structs import replace

from gpu_mem_calculator.pytorch.replay.advice import advise
from gpu_mem_calculator.pytorch.replay.replays import history, replay
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

MIB = 2**20
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def reserved(
    sizes: list[int], events: list[int], cap: int | None = None, streams: list[int] | None = None
) -> list[int]:
    """MiB reserved after each event."""
    stream = AllocationStream.of([s * MIB for s in sizes], events, streams=streams or [])
    return [step // MIB for _, step in history(stream, EXPANDABLE, cap)]


def test_large_blocks_are_mapped_in_pages_of_20_mib() -> None:
    """30 MiB take two pages, and the next 10 MiB fit into the rest."""
    assert reserved([30, 10, 10], [0, 1, 2]) == [40, 40, 60]


def test_small_blocks_are_mapped_in_pages_of_2_mib() -> None:
    """Two blocks of 1 MiB share a page of the small pool's segment."""
    assert reserved([1, 1, 1], [0, 1, 2]) == [2, 2, 4]


def test_a_free_end_is_extended() -> None:
    """A larger request uses the free end and maps only the pages that are missing."""
    assert reserved([30, 50], [0, ~0, 1]) == [40, 40, 60]


def test_blocks_are_split_to_the_last_512_bytes() -> None:
    """Every rest is split off, so allocated bytes are the requested ones."""
    stream = AllocationStream.of([40 * MIB, 40 * MIB - 512], [0, ~0, 1])
    assert history(stream, EXPANDABLE)[-1] == (40 * MIB - 512, 40 * MIB)


def test_a_block_that_can_grow_is_used_last() -> None:
    """A hole of 40 MiB is used before a free end of 20, which could grow."""
    sizes = [40, 20, 20, 15, 40]
    events = [0, 1, 2, ~0, ~2, 3, 4]
    assert reserved(sizes, events)[-2:] == [80, 100]


def test_each_cuda_stream_has_a_segment() -> None:
    """A block freed on one CUDA stream does not serve another."""
    assert reserved([20, 20], [0, ~0, 1], streams=[0, 1])[-1] == 40


def test_at_the_cap_empty_pages_are_unmapped() -> None:
    """Whole free pages are unmapped, and holes are filled from the lowest address on."""
    sizes, events = [40, 20, 20, 60], [0, 1, 2, ~0, ~2, 3]
    assert reserved(sizes, events, cap=90 * MIB) == [40, 60, 80, 80, 80, 80]
    assert reserved([*sizes, 30], [*events, ~3, 4], cap=90 * MIB)[-1] == 80


def test_a_page_in_use_is_not_unmapped() -> None:
    """A block of 10 MiB keeps its page of 20 mapped, at either end of a free range."""
    sizes, events = [10, 40, 10, 60], [0, 1, 2, ~1, 3]
    assert reserved(sizes, events, cap=100 * MIB)[-1] == 100
    assert (
        replay(
            AllocationStream.of([s * MIB for s in sizes], events), EXPANDABLE, 98 * MIB
        ).failed_at
        == 4
    )


def test_the_last_page_may_exceed_a_memory_fraction() -> None:
    """torch checks the request against its fraction, and then maps whole pages; a card has none
    beyond its memory.
    """
    stream = AllocationStream.of([50 * MIB], [0])
    fraction = replace(EXPANDABLE, memory_fraction=True)
    assert history(stream, fraction, 50 * MIB) == [(50 * MIB, 60 * MIB)]
    assert history(stream, EXPANDABLE, 50 * MIB) == []


def test_only_the_pages_that_are_missing_have_to_fit() -> None:
    """Of 50 MiB after a free end of 40, 20 are mapped; a memory fraction counts all 50."""
    stream = AllocationStream.of([30 * MIB, 50 * MIB], [0, ~0, 1])
    assert history(stream, EXPANDABLE, 60 * MIB)[-1] == (50 * MIB, 60 * MIB)
    assert replay(stream, EXPANDABLE, 60 * MIB).retries == 0
    assert replay(stream, replace(EXPANDABLE, memory_fraction=True), 60 * MIB).retries == 1


def test_advice_says_what_it_saves() -> None:
    """Where segments do not fit each other, expandable ones save memory, and a sentence says so."""
    sizes: list[int] = []
    events: list[int] = []
    for size in range(100, 140, 4):
        first = len(sizes)
        sizes += [size * MIB, (size - 60) * MIB]
        events += [first, ~first, first + 1]
    text = advise(AllocationStream.of(sizes, events))
    assert text == "`expandable_segments:True` lets this run survive in 0.6 instead of 0.9 GiB"


def test_no_advice_where_nothing_is_saved() -> None:
    """A run that saves nothing, or has the setting already, gets no advice."""
    stream = AllocationStream.of([100 * MIB], [0])
    assert advise(stream) == ""
    assert advise(stream, EXPANDABLE) == ""
