"""FSDP2's units: padding and the allocator's blocks."""

from __future__ import annotations

from gpu_mem_calculator.memory.fsdp.units import shard_elements
from gpu_mem_calculator.memory.unsplit import unsplit_bytes
from gpu_mem_calculator.model.blocks import Weight


def test_short_tensors_are_padded() -> None:
    """Sixteen rows on 64 ranks are a row on each of them, padding included."""
    assert shard_elements(Weight("lora_A", (("lora", 16), ("embed", 4096))), 64) == 4096
    assert shard_elements(Weight("q", (("heads", 4096), ("embed", 4096))), 64) == 64 * 4096


def test_blocks_with_a_small_rest_are_not_split() -> None:
    """43 MiB take a 44 MiB block; 42.5 MiB leave too much, and small requests share."""
    mib = 2**20
    assert unsplit_bytes(43 * mib) == mib
    assert unsplit_bytes(85 * mib // 2) == 0
    assert unsplit_bytes(9 * mib) == 0
