"""A set-up in full: memory with replay and margin, time with its parts, price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....estimates.calculator import Estimate, full_estimate
from ....estimates.machine import machine_of
from ....timing.training.flops import mfu, model_flops
from ....timing.training.step import step_seconds
from ....timing.training.step_seconds import PARTS
from ..answers.plans import Plan, PlanSeconds, PlanStage

HOUR = 3600


def full_plan(
    run: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    price: float | None = None,
    tokens: int | None = None,
) -> Plan:
    """The plan of a run file; `settings` are the keys by which it is named."""
    estimate = full_estimate(dict(run))
    result, seconds = estimate.result, plan_seconds(estimate)
    gpus = estimate.resolved.hardware.num_gpus
    rate = step_tokens(estimate) / seconds.estimate
    hours = None if tokens is None else tokens / rate * gpus / HOUR
    return Plan(
        rank=0,
        run=dict(run),
        settings=dict(settings),
        needs_bytes=result.needs_bytes or result.allocated_bytes,
        allocated_bytes=result.allocated_bytes,
        margin_bytes=result.margin_bytes or 0,
        headroom_bytes=result.headroom_bytes,
        fits_on_gpu=result.figures_fit,
        open=[str(one) for one in result.limits if one.adds_bytes != 0],
        step_seconds=seconds,
        tokens_per_second=rate,
        mfu=_mfu(estimate, seconds.estimate),
        host_bytes_per_node=result.host_bytes_per_node,
        gpu_hours=hours,
        cost=None if hours is None or price is None else hours * price,
        stages=[
            PlanStage(
                stage=stage.stage, layers=stage.num_layers, allocated_bytes=stage.allocated_bytes
            )
            for stage in result.stages
        ],
    )


def step_tokens(estimate: Estimate) -> int:
    """Tokens of one step over all GPUs."""
    run = estimate.resolved.run
    return int(run.batch) * int(run.micro_batches) * int(run.mesh.dp) * int(run.seq)


def plan_seconds(estimate: Estimate) -> PlanSeconds:
    """The time of a step of an estimated run."""
    resolved = estimate.resolved
    time = step_seconds(resolved.run, resolved.engine.name, machine_of(resolved.hardware))
    return PlanSeconds(
        estimate=float(time.estimate),
        low=float(time.low),
        high=float(time.high),
        parts={name: float(getattr(time, name)) for name in PARTS},
    )


def _mfu(estimate: Estimate, seconds: float) -> float:
    """Model FLOPs over the dense peak of the cards in the dtype of the arithmetic."""
    run, hardware = estimate.resolved.run, estimate.resolved.hardware
    peak = machine_of(hardware).peak[run.precision.partition("_")[0]]  # of the arithmetic's dtype
    flops = model_flops(run.arch, step_tokens(estimate), int(run.seq), frozen=run.frozen)
    return float(mfu(flops, seconds, hardware.num_gpus, peak))
