"""Seconds of a step of one rank that no other rank keeps waiting.

A process group that is fake, or has one rank, moves nothing. What such a run measures has neither
communication nor bubble, and is of the stage that it plays.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ledger.num import Num
from ...run.run import Run
from ..curves.machine import Machine
from .compute import (
    BlockSeconds,
    both_ends,
    embedding_seconds,
    head_seconds,
    layer_seconds,
    recomputed_share,
)
from .host import host_seconds
from .operators import layer_kinds
from .optimizer import offload_seconds, offloaded, optimizer_seconds
from .parameters import rank_parameters
from .pipeline import Stages, stages, weighted
from .step_seconds import Seconds
from .synchronization import accumulation_seconds, copy_seconds

Phase = tuple[float, float]  # seconds of the host, and of the GPU


def alone_seconds(run: Run, engine: str, machine: Machine, stage: int = 0) -> Seconds:
    """The seconds of a step on a rank of a stage, without the other ranks."""
    kinds = layer_kinds(run.arch)
    counts = _layers(stages(run, kinds), stage, int(run.mesh.pp))
    owned = rank_parameters(run, engine, kinds, counts)
    copies = copy_seconds(run, engine, machine, owned)
    added = accumulation_seconds(run, engine, machine, owned)
    first, last = stage == 0, stage == int(run.mesh.pp) - 1
    passes = _micro_batch(run, engine, machine, counts, first, last)
    phases: list[Phase] = []
    for number in range(int(run.micro_batches)):
        (forward, head, (launching, backward)) = passes
        more = copies + added * (number > 0)
        phases += [forward, head, (launching, backward + more)]
    moved = offload_seconds(run, engine, owned.stepped, alone=True)
    stepped = 0.0
    if not offloaded(run):
        stepped = optimizer_seconds(run, engine, machine, owned.stepped)
    return finished([*phases, (0.0, stepped)]) + moved


def _micro_batch(
    run: Run, engine: str, machine: Machine, counts: tuple[Num, ...], first: bool, last: bool
) -> tuple[Phase, Phase, Phase]:
    """Forward of the layers, the head in both directions, backward of the layers."""
    kinds, share = layer_kinds(run.arch), recomputed_share(run)
    blocks = tuple(layer_seconds(run, engine, machine, kind) for kind in kinds)
    start = embedding_seconds(run, engine, machine) if first else BlockSeconds()
    end = head_seconds(run, engine, machine) if last else BlockSeconds()
    host = host_seconds(run, engine, blocks, both_ends(start, end))
    forward = weighted(counts, tuple(b.forward for b in blocks)) + start.forward
    back = weighted(counts, tuple(b.backward + b.recompute * share for b in blocks))
    half = host.ends / 2
    return (
        (weighted(counts, host.forwards) + half, forward),
        (half, end.forward + end.backward),
        (weighted(counts, host.backwards) + host.step, back + start.backward),
    )


def finished(phases: Iterable[Phase]) -> float:
    """When the GPU has finished phases that the host launches one after another.

    It runs a phase when it has finished the one before and the host has begun this one, and not
    before the host has launched all of it.
    """
    host = gpu = 0.0
    for launching, running in phases:
        gpu = max(max(gpu, host) + running, host + launching)
        host += launching
    return gpu


def _layers(where: Stages, stage: int, num_stages: int) -> tuple[Num, ...]:
    if stage == 0:
        return where.first
    return where.last if stage == num_stages - 1 else where.middle
