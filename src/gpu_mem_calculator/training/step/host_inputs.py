"""Inputs of recomputed layers that a checkpoint keeps in host RAM."""

from __future__ import annotations

from collections.abc import Mapping

from ...ledger.ledger import ACT, CPU, Entry
from ...ledger.num import Num, power_of_two
from ...ledger.source import code
from ...pytorch.autograd.walk import BlockWalk

SAVE_ON_CPU = code("torch 2.11 autograd/graph.py save_on_cpu: one pinned tensor for each input")


def host_inputs(name: str, walk: BlockWalk, live: Mapping[str, Num]) -> Entry:
    """The inputs of layers, each rounded to a power of two by torch's allocator of pinned memory
    (ATen/core/CachingHostAllocator.h).
    """
    size = power_of_two(walk.input_bytes)
    return Entry(f"{name} on the host", ACT, size, live, SAVE_ON_CPU, place=CPU)
