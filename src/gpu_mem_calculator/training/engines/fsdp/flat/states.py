"""What a rank of FSDP version 1 holds for its parameters: shards, states, units at work."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from .....ledger.ledger import TEMP, Entry
from .....ledger.num import Num, larger, sized
from .....ledger.source import code
from .....run.phases import OPTIMIZER
from .....run.run import Run
from ....optimizers import OPTIMIZERS
from ....step.layer_groups import LayerGroup
from ....step.states import buffer_entry, optimizer_entries
from ..cache import ShardEntries, cached_without_tokens
from ..offload import host_step_entries
from .gather import gathered_entries, lazy_entry, shard_copy_entries
from .layout import FlatLayout, flat_layout
from .offload import host_entries
from .reduce import gradient_entries, output_entries, sharded_gradient_entries
from .startup import shard_entries, startup_entries, startup_instants

NORM_CODE = code("torch 2.13 D/fully_sharded_data_parallel.py:1085 clip_grad_norm_, 2126: a norm")
NORM_BYTES = 512  # a scalar's block


@cached_without_tokens
def state_entries(run: Run, stack: tuple[LayerGroup, ...]) -> ShardEntries:
    """The entries of a run's parameters; cached for equal runs but for batch and sequence."""
    plan = flat_layout(run, stack)
    startup = startup_instants(plan)
    buffers = buffer_entry(run, plan.step_instants)
    live = {**{i.name: 1 for i in startup}, **buffers.live}
    shards = (*shard_entries(plan), *startup_entries(plan), replace(buffers, live=live))
    units = (
        *lazy_entry(plan),
        *shard_copy_entries(plan),
        *gathered_entries(plan),
        *gradient_entries(plan),
        *output_entries(plan),
        *sharded_gradient_entries(plan),
        *_step_entries(plan),
        *(host_entries(plan) if plan.offload else ()),
    )
    return ShardEntries(plan, startup, shards, units)


def _step_entries(plan: FlatLayout) -> Iterator[Entry]:
    """The optimizer's states and temporaries on this rank's shards, and gradient clipping."""
    run, root = plan.run, plan.root
    total, largest, tensors = root.trained_elements, root.largest_trained, root.trained_tensors
    sizes = [*root.states]
    for kind in plan.layers if run.unrolled else ():
        sizes += plan.kinds[kind][1].states
    for kind, (_, unit) in enumerate(plan.kinds):
        count = plan.layers.count(kind)
        total = total + count * unit.trained_elements
        tensors = tensors + count * unit.trained_tensors
        largest = larger(largest, unit.largest_trained)
    if plan.offload:
        yield from host_step_entries(plan, total, largest, tensors, plan.bits.stored)
        return
    yield from optimizer_entries(
        replace(run, clipping=False),
        total,
        plan.bits.stored,
        plan.step_instants,
        implementation=run.implementation or OPTIMIZERS[run.optimizer].default,
        largest=largest,
        tensors=tensors,
        sizes=tuple((int(size), 1) for size in sizes if int(size)) if run.unrolled else (),
    )
    yield from _norm_entries(plan, tensors)


def _norm_entries(plan: FlatLayout, tensors: Num) -> Iterator[Entry]:
    """FSDP's clip_grad_norm_: a norm of each gradient, one after the other."""
    if plan.run.clipping:
        optimizer = [i for i in plan.step_instants if i.instant.phase == OPTIMIZER]
        live: dict[str, Num] = {i.name: 1 for i in optimizer}
        size = sized(tensors * NORM_BYTES, 8)
        yield Entry("gradient norms", TEMP, size, live, NORM_CODE)
