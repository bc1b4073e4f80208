"""Seconds of kernels that memory bandwidth bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...ledger.num import holds
from ..curves.elementwise import KERNEL_SECONDS
from ..curves.machine import Machine
from .step_seconds import Seconds
from .traffic import MemoryKernel


def elementwise_seconds(machine: Machine, kernels: Iterable[MemoryKernel]) -> Seconds:
    """Seconds of kernels, by the bytes that each reads and writes and the share that it reaches."""
    seconds: Seconds = 0.0
    for kernel in kernels:
        num_bytes: Any = kernel.num_bytes
        moved = num_bytes / (machine.memory_bytes_per_second * kernel.share)
        seconds = seconds + (moved + KERNEL_SECONDS * holds(num_bytes > 0))
    return seconds
