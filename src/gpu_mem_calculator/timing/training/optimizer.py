"""Seconds of the optimizer step."""

from __future__ import annotations

from ...ledger.num import Num
from ...run.run import Run
from ..curves.machine import Machine
from .elementwise import elementwise_seconds
from .step_seconds import Seconds

# Bytes that the step reads and writes for each fp32 parameter. Fused Adam reads and writes weight
# and two states and reads the gradient; foreach makes a pass for each operation.
FUSED_BYTES, FOREACH_BYTES = 28, 68
NORM_BYTES, COPY_BYTES = 12, 2  # clipping; the 16-bit copy of the weight


def optimizer_seconds(run: Run, engine: str, machine: Machine, elements: Num) -> Seconds:
    """Seconds to clip gradients and step `elements` parameters on the GPU."""
    fused = run.implementation == "fused" or engine not in ("pytorch_ddp", "fsdp")
    num_bytes = FUSED_BYTES if fused else FOREACH_BYTES
    num_bytes += NORM_BYTES * run.clipping + COPY_BYTES
    return elementwise_seconds(machine, [elements * num_bytes])
