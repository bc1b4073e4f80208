"""Seconds in which gradients are reduced and weights are gathered over data-parallel ranks, and
those of the copies around that, which run whether or not the collective moves anything and take
memory bandwidth from the kernels beside them.

What overlaps by default has one row for each engine, or each stage of ZeRO.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import larger, sized
from ...ledger.units import MIB
from ...run.engine_row import REPLICATE, SHARD_STATES, SHARD_UNITS, ZERO
from ...run.run import Run
from ...training.engines import engine_row
from ...training.engines.fsdp import options as fsdp
from ...training.engines.megatron_lm import options as megatron
from ..curves.collectives import collective_seconds
from ..curves.elementwise import PLAIN
from ..curves.machine import Machine
from .communication import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from .parameters import RankParameters
from .step_seconds import Seconds, without
from .tapes import precision_of
from .traffic import MemoryKernel, elementwise_seconds


class Overlap(Struct, frozen=True):
    """What overlaps.

    - reduces: gradients are reduced while backward runs
    - every: for each micro-batch, not once a step
    - gathers: weights are gathered while other layers run
    """

    reduces: bool
    every: bool
    gathers: bool


AT_END, ALL = Overlap(False, False, False), Overlap(True, True, True)
# torch DDP reduces a bucket as soon as its gradients exist; accumulation runs under no_sync (torch
# 2.13 nn/parallel/distributed.py, reducer.cpp).
OF_DDP = Overlap(True, False, False)
# ZeRO: overlap_comm is on at stage 3 only; stage 2 reduces in every backward, 0 and 1 at the end
# (deepspeed 0.19.8 runtime/engine.py allreduce_gradients, zero/stage_1_and_2.py, zero/stage3.py).
OF_ZERO = (AT_END, AT_END, Overlap(False, True, False), ALL)


def overlap_of(run: Run, engine: str) -> Overlap:
    """What overlaps in a run."""
    ranks = engine_row(engine).ranks
    if ranks == SHARD_UNITS:
        # the next unit is gathered while one runs, and reduced on a stream of its own (torch 2.13
        # distributed/fsdp/_fully_shard/_fsdp_param_group.py)
        return ALL
    if ranks == SHARD_STATES:  # megatron-core 0.19.2 distributed/param_and_grad_buffer.py
        reduces = bool(run.options.get("overlap_grad_reduce"))
        return Overlap(reduces, False, bool(run.options.get("overlap_param_gather")))
    if ranks == ZERO:
        row = OF_ZERO[int(run.options.get("zero_stage") or 0)]
        given = run.options.get("overlap_comm")
        return row if given is None else replace(row, reduces=bool(given))
    return OF_DDP


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


# Bytes of a gradient's element in ZeRO's bucket: copied into it (read and write), divided by the
# ranks (read and write). deepspeed 0.19.8 runtime/zero/stage_1_and_2.py, average_tensor.
BUCKET_BYTES = 8


def copy_seconds(run: Run, engine: str, machine: Machine, owned: RankParameters) -> Seconds:
    """Seconds of the copies of FSDP and ZeRO."""
    row = engine_row(engine)
    if row.ranks == SHARD_UNITS:
        copied = _fsdp_bytes(run, owned, row.precision(run).compute // 8)
        return elementwise_seconds(machine, [MemoryKernel("fsdp.copies", copied)])
    if row.zero_hooks and run.options.get("zero_stage"):
        return elementwise_seconds(
            machine, [MemoryKernel("zero.bucket", owned.trained * BUCKET_BYTES)]
        )
    return 0.0


def accumulation_seconds(run: Run, engine: str, machine: Machine, owned: RankParameters) -> Seconds:
    """Seconds to add the gradients of a micro-batch to those of the ones before, in place, where
    autograd keeps them.
    """
    row = engine_row(engine)
    if row.ranks != REPLICATE:
        return 0.0
    bits = row.precision(run).weights
    return elementwise_seconds(
        machine, [MemoryKernel("gradient.added", 3 * sized(owned.trained, bits), PLAIN)]
    )


def _fsdp_bytes(run: Run, owned: RankParameters, width: int) -> Seconds:
    """What a gather copies out of its buffer, in forward and unless kept in backward; what a
    reduction copies into its own (torch 2.11 fsdp/_fully_shard/_fsdp_collectives.py). `width`:
    bytes of a gathered element.
    """
    gathers = 1 if run.options["sharding_strategy"] in fsdp.KEEP_GATHERED else 2
    reduced = 4 if run.options["reduce_dtype"] == "fp32" else width
    return owned.dense * 2 * width * gathers + owned.trained * (width + reduced)
