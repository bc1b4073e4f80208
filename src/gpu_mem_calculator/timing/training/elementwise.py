"""Seconds of kernels that memory bandwidth bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...ledger.num import holds
from ..curves.machine import Machine
from .step_seconds import Seconds

SHARE = 0.8  # of the memory's bandwidth
KERNEL_SECONDS = 2.0e-6  # of a kernel without work


def elementwise_seconds(machine: Machine, kernels: Iterable[Any]) -> Seconds:
    """Seconds of kernels, each given as the bytes that it reads and writes."""
    seconds: Seconds = 0.0
    for num_bytes in kernels:
        moved = num_bytes / (machine.memory_bytes_per_second * SHARE)
        seconds = seconds + (moved + KERNEL_SECONDS * holds(num_bytes > 0))
    return seconds
