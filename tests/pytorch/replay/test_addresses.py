"""Addresses of segments: chunks of 32 MiB from the top down."""

from __future__ import annotations

from gpu_mem_calculator.pytorch.replay.cache import CHUNK, TOP, AddressSpace


def test_each_chunk_is_below_the_last() -> None:
    """48 MiB take two chunks' worth of addresses, below those before."""
    space = AddressSpace()
    assert [space.take(24), space.take(24)] == [TOP - 2 * CHUNK, TOP - 4 * CHUNK]


def test_the_rest_of_a_chunk_is_used_lowest_first() -> None:
    """12 MiB fit after 48 in their 64; the lowest chunk with enough space comes first."""
    space = AddressSpace()
    first, second = space.take(24), space.take(24)
    assert [space.take(6), space.take(6)] == [second + 24, first + 24]


def test_holes_are_filled_from_the_top() -> None:
    """The highest hole that fits is used, at its upper end."""
    space = AddressSpace()
    high, low, _ = space.take(64), space.take(64), space.take(16)
    space.give_back(high, 64)
    space.give_back(low, 64)
    assert space.take(32) == high + 32


def test_an_empty_chunk_is_released() -> None:
    """Two segments of a chunk, both released, leave space for one as large as the chunk."""
    space = AddressSpace()
    first = space.take(10)
    second = space.take(6)
    space.take(16)
    space.give_back(first, 10)
    space.give_back(second, 6)
    assert space.take(16) == first


def test_free_neighbours_in_a_chunk_are_merged() -> None:
    """Adjacent ranges are merged while their chunk is in use."""
    space = AddressSpace()
    first, second = space.take(4), space.take(4)
    space.take(8)
    space.give_back(second, 4)
    space.give_back(first, 4)
    assert space.take(8) == first


def test_the_bottom_rises_again() -> None:
    """When the lowest chunk is released, the next one has its address."""
    space = AddressSpace()
    lowest = space.take(16)
    space.give_back(lowest, 16)
    assert space.take(16) == lowest


def test_a_copy_is_independent() -> None:
    """A segment of a copy takes no address of the original."""
    space = AddressSpace()
    space.take(10)
    twin = space.copy()
    assert twin.take(6) == space.take(6)
