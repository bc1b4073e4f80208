"""Seconds of an optimizer on the host, and of what moves between host and GPU."""

from __future__ import annotations

from typing import Any

from ...run.run import Run
from ..curves.machine import Machine
from .step_seconds import Seconds

LINK_BYTES_PER_SECOND = 2.2e10  # PCIe 4 or 5, pinned memory, one direction
HOST_BYTES_PER_SECOND = 1.6e10  # one rank's share of the host's memory while all ranks step
HOST_BYTES = 30  # read and written by CPU Adam for each parameter


def offloaded(run: Run) -> bool:
    """Whether the host steps the parameters."""
    return run.options.get("offload_optimizer", "none") != "none" or bool(
        run.options.get("cpu_offload")
    )


def offload_seconds(run: Run, engine: str, machine: Machine, elements: Any) -> Seconds:
    """Seconds to send gradients to the host, step `elements` there, and send weights back."""
    if not offloaded(run):
        return 0.0
    return elements * (4 / LINK_BYTES_PER_SECOND + HOST_BYTES / HOST_BYTES_PER_SECOND)
