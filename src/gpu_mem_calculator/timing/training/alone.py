"""Seconds of a step of one rank that no other rank keeps waiting.

A process group that is fake, or has one rank, moves nothing. What such a run measures has neither
communication nor bubble, and is of the stage that it plays.
"""

from __future__ import annotations

from ...ledger.num import Num
from ...run.run import Run
from ..curves.machine import Machine
from .compute import BlockSeconds, embedding_seconds, head_seconds, layer_seconds, recomputed_share
from .copies import copy_seconds
from .host import host_seconds
from .numbers import larger
from .offload import offload_seconds, offloaded
from .operators import layer_kinds
from .optimizer import optimizer_seconds
from .parameters import rank_parameters
from .pipeline import Stages, stages, weighted
from .step_seconds import Seconds


def alone_seconds(run: Run, engine: str, machine: Machine, stage: int = 0) -> Seconds:
    """The seconds of a step on a rank of a stage, without the other ranks."""
    kinds = layer_kinds(run.arch)
    counts = _layers(stages(run, kinds), stage, int(run.mesh.pp))
    blocks = tuple(layer_seconds(run, engine, machine, kind) for kind in kinds)
    first, last = stage == 0, stage == int(run.mesh.pp) - 1
    ends = [embedding_seconds(run, engine, machine)] if first else []
    ends += [head_seconds(run, engine, machine)] if last else []
    share = recomputed_share(run)
    forward = weighted(counts, tuple(b.forward for b in blocks))
    backward = weighted(counts, tuple(b.backward + b.recompute * share for b in blocks))
    closing: Seconds = 0.0
    for block in ends:
        closing = closing + block.total
    launched = BlockSeconds(
        launches=sum(block.launches for block in ends),
        back_launches=sum(block.back_launches for block in ends),
    )
    host = host_seconds(run, engine, machine, blocks, launched)
    owned = rank_parameters(run, engine, kinds, counts)
    stepped = 0.0
    if not offloaded(run):
        stepped = optimizer_seconds(run, engine, machine, owned.stepped)
    moved = offload_seconds(run, engine, machine, owned.stepped, alone=True)
    passes = larger(forward, weighted(counts, host.forwards))
    passes = passes + larger(backward, weighted(counts, host.backwards))
    passes = passes + larger(closing, host.ends) + copy_seconds(run, engine, machine, owned)
    return passes * run.micro_batches + host.step + stepped + moved


def _layers(where: Stages, stage: int, num_stages: int) -> tuple[Num, ...]:
    if stage == 0:
        return where.first
    return where.last if stage == num_stages - 1 else where.middle
