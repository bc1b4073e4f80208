"""Where segments lie: chunks of 32 MiB from the top down."""

from __future__ import annotations

from gpu_mem_calculator.replay.addresses import CHUNK, TOP, AddressSpace


def test_each_chunk_lies_below_the_last() -> None:
    """48 MiB take two chunks' worth of addresses, below those before."""
    space = AddressSpace()
    assert [space.take(24), space.take(24)] == [TOP - 2 * CHUNK, TOP - 4 * CHUNK]


def test_what_is_left_of_a_chunk_is_used_lowest_first() -> None:
    """12 MiB fit behind 48 in their 64; the lowest chunk with room comes first."""
    space = AddressSpace()
    first, second = space.take(24), space.take(24)
    assert [space.take(6), space.take(6)] == [second + 24, first + 24]


def test_holes_are_filled_from_the_top() -> None:
    """The highest hole that fits is taken, at its upper end."""
    space = AddressSpace()
    high, low, _ = space.take(64), space.take(64), space.take(16)
    space.give_back(high, 64)
    space.give_back(low, 64)
    assert space.take(32) == high + 32


def test_a_chunk_goes_back_when_it_is_empty() -> None:
    """Two segments of a chunk, both freed, leave room for one as large as the chunk."""
    space = AddressSpace()
    first = space.take(10)
    second = space.take(6)
    space.take(16)
    space.give_back(first, 10)
    space.give_back(second, 6)
    assert space.take(16) == first


def test_freed_neighbours_in_a_chunk_are_one() -> None:
    """Pieces that touch are joined while their chunk is in use."""
    space = AddressSpace()
    first, second = space.take(4), space.take(4)
    space.take(8)
    space.give_back(second, 4)
    space.give_back(first, 4)
    assert space.take(8) == first


def test_the_bottom_rises_again() -> None:
    """When the lowest chunks are freed, the next one lies where they lay."""
    space = AddressSpace()
    lowest = space.take(16)
    space.give_back(lowest, 16)
    assert space.take(16) == lowest


def test_a_copy_goes_its_own_way() -> None:
    """What is taken from a copy is not taken from the first."""
    space = AddressSpace()
    space.take(10)
    twin = space.copy()
    assert twin.take(6) == space.take(6)
