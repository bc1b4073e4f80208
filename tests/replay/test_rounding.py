"""Sizes of blocks and segments."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.replay.rounding import UNIT, round_units, segment_units
from gpu_mem_calculator.replay.settings import AllocatorSettings

MIB = 2**20


@pytest.mark.parametrize(("asked", "given"), [(1, 512), (512, 512), (513, 1024), (0, 0)])
def test_requests_are_rounded_to_512_bytes(asked: int, given: int) -> None:
    """The least block has 512 bytes; nothing asked is nothing given."""
    assert round_units(asked, AllocatorSettings()) * UNIT == given


@pytest.mark.parametrize(
    ("asked", "given"),
    [(1200 * 1024, 1280 * 1024), (2048, 2048), (2049, 2560), (1024, 1024), (5 * MIB, 5 * MIB)],
)
def test_divisions_round_up_between_powers_of_two(asked: int, given: int) -> None:
    """Four divisions between 1024 and 2048 KiB are 1024, 1280, 1536 and 1792 KiB."""
    settings = AllocatorSettings.parse("roundup_power2_divisions:4")
    assert round_units(asked, settings) * UNIT == given


def test_divisions_depend_on_the_interval() -> None:
    """A list rounds each power of two in its own way."""
    settings = AllocatorSettings.parse("roundup_power2_divisions:[4:2,8:4,>:0]")
    asked = [4 * MIB + 1, 8 * MIB + 1, 16 * MIB + 1]
    given = [6 * MIB, 10 * MIB, 16 * MIB + 512]
    assert [round_units(size, settings) * UNIT for size in asked] == given


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
    ],
)
def test_segments_are_2_or_20_mib_or_a_multiple_of_2(block: int, segment: int) -> None:
    """Small blocks share 2 MiB, those under 10 MiB share 20 MiB, larger ones have their own."""
    assert segment_units(block // UNIT, 20 * MIB // UNIT) * UNIT == segment
