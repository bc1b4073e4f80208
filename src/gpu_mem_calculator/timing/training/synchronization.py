"""Seconds in which gradients are reduced and weights are gathered over data-parallel ranks.

What each engine's collectives overlap with by default.

`backward`: gradients are reduced while the last micro-batch's backward runs, `every` micro-batch's,
or `nothing` runs meanwhile. `gathers`: weights are gathered while layers before them run. One row
for each engine, or each stage of ZeRO.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import larger, sized
from ...ledger.units import MIB
from ...run.engine_row import SHARD_STATES, SHARD_UNITS, ZERO
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.fsdp import options as fsdp
from ...training.engines.megatron_lm import options as megatron
from ..curves.collectives import collective_seconds
from ..curves.machine import Machine
from .communication import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from .numbers import without
from .parameters import RankParameters
from .step_seconds import Seconds
from .tapes import precision_of


class Overlap(Struct, frozen=True):
    """What overlaps.

    - reduces: gradients are reduced while backward runs
    - every: for each micro-batch, not once a step
    - gathers: weights are gathered while other layers run
    """

    reduces: bool
    every: bool
    gathers: bool
    source: str


# torch DDP reduces a bucket as soon as its gradients exist; accumulation runs under no_sync.
DDP_ROW = Overlap(True, False, False, "torch 2.13 nn/parallel/distributed.py, reducer.cpp")
# FSDP gathers the next unit while one runs, and reduces on a stream of its own.
FSDP_ROW = Overlap(
    True, True, True, "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py"
)
# ZeRO: overlap_comm is on at stage 3 only; stage 2 reduces in every backward, 0 and 1 at the end.
ZERO_ROWS = {
    0: Overlap(False, False, False, "deepspeed 0.19.8 runtime/engine.py allreduce_gradients"),
    1: Overlap(False, False, False, "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"),
    2: Overlap(False, True, False, "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"),
    3: Overlap(True, True, True, "deepspeed 0.19.8 runtime/zero/stage3.py"),
}
# Megatron: --overlap-grad-reduce and --overlap-param-gather are off unless given.
MEGATRON_ROW = Overlap(
    False, False, False, "megatron-core 0.19.2 distributed/param_and_grad_buffer.py"
)


def overlap_of(run: Run, engine: str) -> Overlap:
    """What overlaps in a run."""
    ranks = engine_row(engine).ranks
    if ranks == SHARD_UNITS:
        return FSDP_ROW
    if ranks == SHARD_STATES:
        reduces = bool(run.options.get("overlap_grad_reduce"))
        gathers = bool(run.options.get("overlap_param_gather"))
        return Overlap(reduces, False, gathers, MEGATRON_ROW.source)
    if ranks == ZERO:
        row = ZERO_ROWS[int(run.options.get("zero_stage") or 0)]
        given = run.options.get("overlap_comm")
        return row if given is None else Overlap(bool(given), row.every, row.gathers, row.source)
    return DDP_ROW


DDP_BUCKET = 25 * MIB  # bytes (torch 2.13 nn/parallel/distributed.py bucket_cap_mb)


class Synchronization(Struct, frozen=True, kw_only=True):
    """Seconds of collectives over data-parallel ranks, before overlap.

    - forward, backward: gathers of weights in each micro-batch
    - reduce: of gradients, once for each micro-batch (`Overlap.every`) or each step
    - gather: of stepped weights, once a step
    - unit: the first gather, or the last reduction, under which nothing runs
    """

    forward: Seconds = 0.0
    backward: Seconds = 0.0
    reduce: Seconds = 0.0
    gather: Seconds = 0.0
    unit: Seconds = 0.0


class Passes(Struct, frozen=True):
    """Seconds of the stage's forward and backward for one micro-batch, which hide collectives."""

    forward: Seconds
    backward: Seconds


def synchronization(
    run: Run, engine: str, machine: Machine, owned: RankParameters
) -> Synchronization:
    """The collectives of a run over its data-parallel ranks."""
    ranks = engine_row(engine).ranks
    if ranks == SHARD_STATES:
        return _megatron(run, machine, owned)
    if ranks == SHARD_UNITS:
        return _fsdp(run, machine, owned)
    if ranks == ZERO:
        return _zero(run, engine, machine, owned)
    bits = precision_of(run, engine).weights
    size = sized(owned.trained, bits)
    last = collective_seconds(machine, ALL_REDUCE, DDP_BUCKET, run.mesh.dp, 1)
    return Synchronization(
        reduce=collective_seconds(machine, ALL_REDUCE, size, run.mesh.dp, 1), unit=last
    )


def _megatron(run: Run, machine: Machine, owned: RankParameters) -> Synchronization:
    """Dense gradients over dp x cp, the experts' over the ranks that have the same ones.

    Several instances of the distributed optimizer shard over neighbouring ranks, and all-reduce
    the shards between instances (param_and_grad_buffer.py start_grad_sync).
    """
    mesh, etp = run.mesh, megatron.expert_tp(run)
    ranks = mesh.dp * mesh.cp
    copies = larger(ranks * mesh.tp // (mesh.ep * etp), 1)
    groups = ((owned.dense, ranks, mesh.tp), (owned.experts, copies, mesh.ep * etp))
    distributed = megatron.option(run, "distributed_optimizer")
    instances = megatron.option(run, "num_distributed_optimizer_instances")
    reduce: Seconds = 0.0
    gather: Seconds = 0.0
    for elements, members, stride in groups:
        gradients = sized(elements, megatron.gradient_bits(run))
        if not distributed:
            reduce = reduce + collective_seconds(machine, ALL_REDUCE, gradients, members, stride)
            continue
        near = larger(members // instances, 1)
        reduce = reduce + collective_seconds(machine, REDUCE_SCATTER, gradients, near, stride)
        if instances > 1:
            shard = gradients // near
            between = collective_seconds(machine, ALL_REDUCE, shard, instances, stride * near)
            reduce = reduce + between
        weights = sized(elements, megatron.bits(run))
        gather = gather + collective_seconds(machine, ALL_GATHER, weights, near, stride)
    return Synchronization(reduce=reduce, gather=gather)


def _fsdp(run: Run, machine: Machine, owned: RankParameters) -> Synchronization:
    """Gathers of the compute dtype in forward and backward, a reduce-scatter in backward."""
    base, _ = fsdp.unit_bits(run)
    ranks = fsdp.shard_ranks(run)
    strategy = fsdp.option(run, "sharding_strategy")
    weights, gradients = sized(owned.dense, base.compute), sized(owned.trained, base.reduce)
    gathered = collective_seconds(machine, ALL_GATHER, weights, ranks, 1)
    reduced = collective_seconds(machine, REDUCE_SCATTER, gradients, ranks, 1)
    if strategy in fsdp.HYBRID or strategy == "no_shard":
        shard = gradients // ranks
        reduced = reduced + collective_seconds(
            machine, ALL_REDUCE, shard, run.mesh.dp // ranks, ranks
        )
    again = 0.0 if strategy in fsdp.KEEP_GATHERED else gathered
    units = len(run.arch.layers) + 1
    return Synchronization(
        forward=gathered, backward=again, reduce=reduced, unit=(gathered + reduced) / units
    )


def _zero(run: Run, engine: str, machine: Machine, owned: RankParameters) -> Synchronization:
    """ZeRO 0 to 2 all-reduce 16-bit gradients (stage_1_and_2.py allreduce_and_scatter), 1 and 2
    gather the stepped weights; 3 gathers in forward and backward and reduce-scatters.
    """
    stage = int(run.options.get("zero_stage") or 0)
    bits = precision_of(run, engine).compute
    dp, stride = run.mesh.dp, run.mesh.tp
    gradients, weights = sized(owned.trained, bits), sized(owned.dense, bits)
    if stage < 3:
        reduced = collective_seconds(machine, ALL_REDUCE, gradients, dp, stride)
        gathered = collective_seconds(machine, ALL_GATHER, gradients, dp, stride)
        return Synchronization(reduce=reduced, gather=gathered if stage else 0.0)
    gathered = collective_seconds(machine, ALL_GATHER, weights, dp, stride)
    reduced = collective_seconds(machine, REDUCE_SCATTER, gradients, dp, stride)
    units = len(run.arch.layers) + 1
    return Synchronization(
        forward=gathered, backward=gathered, reduce=reduced, unit=(gathered + reduced) / units
    )


def exposed_seconds(
    run: Run, engine: str, sync: Synchronization, passes: Passes
) -> tuple[Seconds, Seconds]:
    """(seconds for each micro-batch, seconds once a step) that nothing hides."""
    overlap = overlap_of(run, engine)
    each: Seconds = _gathers(overlap, sync, passes)
    reduced = sync.reduce
    if overlap.reduces:
        hidden = without(passes.backward, sync.backward) if overlap.every else passes.backward
        reduced = without(sync.reduce, hidden) + sync.unit
    once = without(sync.gather, passes.forward) if overlap.gathers else sync.gather
    if overlap.every:
        return each + reduced, once
    return each, once + reduced


def _gathers(overlap: Overlap, sync: Synchronization, passes: Passes) -> Seconds:
    """Gathers of a micro-batch that no layer hides."""
    if not overlap.gathers:
        return sync.forward + sync.backward
    return without(sync.forward, passes.forward) + without(sync.backward, passes.backward)
