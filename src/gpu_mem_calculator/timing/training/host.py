"""Seconds that the host needs to launch a step's kernels."""

from __future__ import annotations

from msgspec import Struct

from ...run.run import Run
from ..curves.machine import Machine
from .compute import BlockSeconds, recomputed_share
from .estimates import MEGATRON_DEEPSPEED_OPERATION
from .step_seconds import Seconds
from .tapes import FSDP, MEGATRON_DEEPSPEED

LAUNCH_SECONDS = 8.0e-6  # of one operation of eager torch, autograd's share included
UNIT_SECONDS = 2.0e-3  # of FSDP's hooks, one unit and pass
COMPILED_SECONDS = 3.0e-6


class HostSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of the host.

    - layers: of one layer of each kind, all passes of one micro-batch; ends: of embedding and head
    - step: once a step, besides the optimizer's kernels
    """

    layers: tuple[Seconds, ...]
    ends: Seconds
    step: Seconds = 0.0


def host_seconds(
    run: Run, engine: str, machine: Machine, layers: tuple[BlockSeconds, ...], ends: BlockSeconds
) -> HostSeconds:
    """The host's seconds; `layers`, `ends`: how many kernels they launch."""
    launch = COMPILED_SECONDS if run.compile else LAUNCH_SECONDS
    if engine == MEGATRON_DEEPSPEED:
        launch = MEGATRON_DEEPSPEED_OPERATION
    again = recomputed_share(run) * (run.recompute == "full")
    unit = UNIT_SECONDS * 2 if engine == FSDP else 0.0
    each = tuple((b.launches * (1 + again) + b.back_launches) * launch + unit for b in layers)
    return HostSeconds(layers=each, ends=(ends.launches + ends.back_launches) * launch + unit)
