"""Seconds of the optimizer step, on the GPU, or on the host with what moves between them."""

from __future__ import annotations

from typing import Any

from ...ledger.num import larger
from ...run.engine_row import REPLICATE, SHARD_STATES, SHARD_UNITS, ZERO
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.deepspeed.options import FUSED_ADAM
from ...training.optimizers import FOREACH, OPTIMIZERS
from ..curves import host as costs
from ..curves.host import FSDP_STEP, ZERO_STEP
from ..curves.machine import Machine
from ..curves.optimizers import (
    CLIP,
    FUSED_ADAM_STEP,
    NEWTON_SCHULZ,
    Step,
    StepCurve,
    step_curve,
    timed_step,
)
from .clock import sustained_share
from .host import num_tensors
from .operators import layer_kinds
from .step_seconds import Seconds
from .traffic import MemoryKernel, elementwise_seconds

# Bytes of a parameter besides the step: the weight is copied back to 16 bits; ZeRO copies the
# gradient to 32 bits before.
WEIGHT_COPY, GRADIENT_COPY = 6, 6
# Apex's kernels, which were not measured: they read and write the weight and each state and read
# the gradient, in 32 bits; clipping reads gradients, then reads and writes them; the weight is
# copied.
APEX_BYTES, APEX_STATE, APEX_CLIP, APEX_COPY = 12, 8, 12, 2


def optimizer_seconds(run: Run, engine: str, machine: Machine, elements: Any) -> Seconds:
    """Seconds to clip gradients and step `elements` parameters on the GPU."""
    traits = engine_row(engine)
    if traits.megatron and run.implementation != FOREACH:
        states = APEX_STATE * OPTIMIZERS[run.optimizer].states
        apex = APEX_BYTES + states + APEX_CLIP * run.clipping + APEX_COPY
        return elementwise_seconds(machine, [MemoryKernel("optimizer", elements * apex)])
    row, curve = OPTIMIZERS[run.optimizer], step_curve(timed_step(own_step(run, engine)))
    narrow = int(traits.ranks == REPLICATE and run.precision.endswith("_pure"))
    num_bytes = (curve.half if narrow else curve.wide) + CLIP[narrow] * run.clipping
    masters = traits.ranks in (ZERO, SHARD_STATES)
    if masters and run.precision != "fp32":
        num_bytes += WEIGHT_COPY + GRADIENT_COPY * traits.zero_hooks
    device = elements * num_bytes / machine.memory_bytes_per_second
    if row.matrices:
        device = device + _orthogonalized(run, machine)
    host = _tensors(run) * _tensor_seconds(run, engine, curve)
    if row.of_bitsandbytes and not masters:
        return device + host  # the host waits for each tensor's kernel
    return larger(device, host)


def own_step(run: Run, engine: str) -> Step:
    """The step of a run's optimizer: what the run chooses, else what the engine or torch does."""
    name, row = run.optimizer, OPTIMIZERS[run.optimizer]
    if engine_row(engine).zero_hooks and run.implementation != FOREACH and name in FUSED_ADAM:
        return name, FUSED_ADAM_STEP
    if not row.implementations:  # bitsandbytes' and transformers' own
        return name, ""
    return name, run.implementation or row.default


def timed_as(run: Run, engine: str) -> str:
    """The optimizer whose time a run's takes, where its own was not measured; else empty."""
    own = own_step(run, engine)
    apex = engine_row(engine).megatron and run.implementation != FOREACH
    return "" if apex or timed_step(own) == own else " ".join(timed_step(own))


def _orthogonalized(run: Run, machine: Machine) -> Seconds:
    """Muon's Newton-Schulz iterations in 16 bits: of a matrix of m rows and n columns, m at most n,
    X Xᵀ, its square, and both times X (torch 2.13 optim/_muon.py _zeropower_via_newtonschulz).
    """
    products = 0.0
    for kind in layer_kinds(run.arch):
        for weight in kind.layer.weights():
            if len(weight.shape) == 2:
                m, n = sorted(weight.shape)
                products += kind.count * (2.0 * m * m * n + 1.0 * m * m * m)
    rate = machine.peak["bf16"] * sustained_share(machine)
    return NEWTON_SCHULZ * 2.0 * products / rate


def _tensor_seconds(run: Run, engine: str, curve: StepCurve) -> float:
    """Seconds of the host for one tensor."""
    traits = engine_row(engine)
    if traits.zero_hooks:
        return ZERO_STEP[int(run.options.get("zero_stage") or 0)]
    if traits.megatron:
        return 0.0
    return curve.tensor + FSDP_STEP * (traits.ranks == SHARD_UNITS)


def _tensors(run: Run) -> Seconds:
    """Tensors that are stepped."""
    if run.adapter is not None:
        return sum(kind.count * len(run.adapter.targets) * 2 for kind in layer_kinds(run.arch))
    return sum(kind.count * num_tensors(kind.layer) for kind in layer_kinds(run.arch)) + 3


# On a node whose ranks all step at once, a rank has its share of cores and of the host's memory.
SHARED_ADAM = 1.9e-9  # seconds of a parameter: 30 bytes at 16 GB/s
SHARED_LINK = 2.2e10  # bytes a second of one direction
WIDE, HALF = 4, 2  # bytes of a gradient or a weight, as it moves: FSDP's, and ZeRO's


def offloaded(run: Run) -> bool:
    """Whether the host steps the parameters."""
    return run.options.get("offload_optimizer", "none") != "none" or bool(
        run.options.get("cpu_offload")
    )


def offload_seconds(run: Run, engine: str, elements: Any, *, alone: bool = False) -> Seconds:
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
    moved = each / costs.TO_HOST[pinned] + each / costs.TO_GPU[pinned]
    zero = costs.CPU_ADAM + costs.CPU_CAST
    stepped = costs.CPU_TORCH if by_units else zero
    return elements * (moved + stepped)
