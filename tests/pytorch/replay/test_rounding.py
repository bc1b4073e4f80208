"""Sizes of blocks and segments."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.pytorch.replay.rounding import UNIT, round_units, segment_units
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings

MIB = 2**20


@pytest.mark.parametrize(("requested", "block"), [(1, 512), (512, 512), (513, 1024), (0, 0)])
def test_requests_are_rounded_to_512_bytes(requested: int, block: int) -> None:
    """The smallest block has 512 bytes; a request of 0 bytes has no block."""
    assert round_units(requested, AllocatorSettings()) * UNIT == block


@pytest.mark.parametrize(
    ("requested", "block"),
    [
        (1200 * 1024, 1280 * 1024),
        (2048, 2048),
        (2049, 2560),
        (1200, 1536),
        (1024, 1024),
        (5 * MIB, 5 * MIB),
    ],
)
def test_divisions_round_up_between_powers_of_two(requested: int, block: int) -> None:
    """Four divisions between 1024 and 2048 KiB are 1024, 1280, 1536 and 1792 KiB."""
    settings = AllocatorSettings.parse("roundup_power2_divisions:4")
    assert round_units(requested, settings) * UNIT == block


def test_one_division_is_none() -> None:
    """torch rounds by divisions from two on."""
    settings = AllocatorSettings.parse("roundup_power2_divisions:1")
    assert round_units(5 * MIB + 1, settings) * UNIT == 5 * MIB + 512


def test_divisions_depend_on_the_interval() -> None:
    """A list sets the divisions of each power of two."""
    settings = AllocatorSettings.parse("roundup_power2_divisions:[4:2,8:4,>:0]")
    requested = [4 * MIB + 1, 8 * MIB + 1, 16 * MIB + 1]
    blocks = [6 * MIB, 10 * MIB, 16 * MIB + 512]
    assert [round_units(size, settings) * UNIT for size in requested] == blocks


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
    """Small blocks share 2 MiB, those under 10 MiB share 20 MiB, larger ones have one each."""
    assert segment_units(block // UNIT, 20 * MIB // UNIT) * UNIT == segment
