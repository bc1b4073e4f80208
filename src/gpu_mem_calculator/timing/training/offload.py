"""Seconds of an optimizer on the host, of what moves between host and GPU, and of a checkpoint."""

from __future__ import annotations

from typing import Any

from ...run.engine_row import SHARD_UNITS
from ...run.run import Run
from ...training.engines import engine_row
from ..curves import transfers
from ..curves.machine import Machine
from .step_seconds import Seconds

# On a node whose ranks all step at once, a rank has its share of cores and of the host's memory.
SHARED_ADAM = 1.9e-9  # seconds of a parameter: 30 bytes at 16 GB/s
SHARED_LINK = 2.2e10  # bytes a second of one direction
WIDE, HALF = 4, 2  # bytes of a gradient or a weight, as it moves: FSDP's, and ZeRO's


def offloaded(run: Run) -> bool:
    """Whether the host steps the parameters."""
    return run.options.get("offload_optimizer", "none") != "none" or bool(
        run.options.get("cpu_offload")
    )


def offload_seconds(
    run: Run, engine: str, machine: Machine, elements: Any, *, alone: bool = False
) -> Seconds:
    """Seconds to send gradients to the host, step `elements` there, and send weights back.

    `alone`: no other rank of the node steps at the same time.
    """
    if not offloaded(run):
        return 0.0
    by_units = engine_row(engine).ranks == SHARD_UNITS
    each = WIDE if by_units else HALF
    if not alone:
        return elements * (2 * each / SHARED_LINK + SHARED_ADAM)
    pinned = bool(run.options.get("pin_memory", True))
    moved = each / transfers.TO_HOST[pinned] + each / transfers.TO_GPU[pinned]
    zero = transfers.CPU_ADAM + transfers.CPU_CAST
    stepped = transfers.CPU_TORCH if by_units else zero
    return elements * (moved + stepped)


def saving_seconds(num_bytes: Any, bytes_per_second: float = 0.0) -> Seconds:
    """Seconds to save a checkpoint of some bytes, at the disk's rate or at that of a local one."""
    return num_bytes / (bytes_per_second or transfers.FILE_BYTES_PER_SECOND)
