"""A server's replica with all that its estimated seconds depend on."""

from __future__ import annotations

from ..cuda.runtimes import ROCM
from ..timing.serving.card import CardRates
from ..timing.serving.engine_costs import AMD_SHARE, COSTS, V0
from ..timing.serving.seconds import TimedReplica
from .machine import machine_of
from .models import GPUConfig
from .resolved_run import ResolvedRun
from .serving_speed import prompt_chunk, serving_replica


def timed_replica(resolved: ResolvedRun, section: GPUConfig, card: CardRates) -> TimedReplica:
    """The replica of a run on the cards that its `hardware` section names."""
    hardware = resolved.hardware
    return TimedReplica(
        replica=serving_replica(resolved, card),
        machine=machine_of(hardware, section.interconnect),
        capability=hardware.compute_capability,
        costs=COSTS[costs_name(resolved)],
        chunk=prompt_chunk(resolved),
        share=AMD_SHARE if hardware.runtime == ROCM else 1.0,
    )


def costs_name(resolved: ResolvedRun) -> str:
    """The engine in the table of costs; vLLM's V0 engine has its own row."""
    name = resolved.engine.name
    if name != "vllm":
        return name
    from ..serving.vllm.versions import v1

    return name if v1(resolved.run) else V0
