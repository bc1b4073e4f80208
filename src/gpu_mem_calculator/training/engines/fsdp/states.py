"""What a rank of FSDP2 holds for its parameters: shards, optimizer states, units at work."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ....ledger.ledger import PARAM, Entry
from ....ledger.num import EMPTY, Bytes, Num, larger, sized
from ....ledger.source import code
from ....run.run import Run
from ...optimizers import OPTIMIZERS
from ...step.layer_groups import LayerGroup
from ...step.states import buffer_entry, optimizer_entries
from .cache import ShardEntries, cached_without_tokens
from .gather import buffer_entries, gathered_entries
from .instants import START
from .layout import FsdpLayout, fsdp_layout, parameters_in_order, shard_rows
from .offload import host_shard_entries, host_step_entries, staging_entries, units
from .options import PRECISIONS, shard_ranks, unit_bits
from .reduce import output_entries, reduced_entries, sharded_gradient_entries
from .startup import META, start_device, start_entries, startup_instants
from .units import FsdpUnit, UnitBits, UnitParameter, fsdp_unit, tower_shards


@cached_without_tokens
def state_entries(run: Run, stack: tuple[LayerGroup, ...]) -> ShardEntries:
    """The entries of a run's parameters; cached for equal runs but for batch and sequence."""
    plan = fsdp_layout(run, stack)
    units = (
        *staging_entries(plan),
        *gathered_entries(plan),
        *buffer_entries(plan),
        *reduced_entries(plan),
        *output_entries(plan),
        *(() if plan.offload else sharded_gradient_entries(plan, tuple(_tower_bytes(run)))),
        *_step_entries(plan),
    )
    shards = _host_shards(plan) if plan.offload else _gpu_shards(plan)
    return ShardEntries(plan, startup_instants(plan), tuple(shards), units)


def _gpu_shards(plan: FsdpLayout) -> Iterator[Entry]:
    """Parameters as they are stored, from start-up on."""
    run, instants = plan.run, plan.step_instants
    if start_device(plan) != META:
        yield from start_entries(plan)
        before = dict.fromkeys((i.name for i in startup_instants(plan)), 1)
        buffers = buffer_entry(run, instants)
        yield replace(buffers, live={**before, **buffers.live})
        return
    live: dict[str, Num] = {START.name: 1, **{i.name: 1 for i in instants}}
    source = code("torch 2.13 F/_fsdp_param.py:298-316: rows padded to equal shards")
    for title, size, tensors in shard_rows(plan):
        yield Entry(f"{title}: sharded parameters", PARAM, size, live, source, tensors=tensors)
    if run.arch.tower:
        tower = _tower_bytes(run)
        name, tensors = "vision tower: sharded parameters", lambda: tower
        yield Entry(name, PARAM, sum(tower, EMPTY), live, source, tensors=tensors)
    yield replace(buffer_entry(run, instants), live=live)
    if run.arch.tied:
        name, size = "tied head, before it is the embedding again", _untied_head(run).shard
        source = code("torch 2.13 nn/modules/module.py to_empty: each name gets a tensor")
        yield Entry(name, PARAM, size, {START.name: 1}, source)


def _tower_bytes(run: Run) -> list[Bytes]:
    """Bytes of the shards of each parameter in a vision tower's blocks."""
    bits = PRECISIONS[run.precision][0]
    return [sized(elements, bits) for elements in tower_shards(run, shard_ranks(run))]


def _untied_head(run: Run) -> FsdpUnit:
    """The tensor of a tied head until it is tied to the embedding again; else an empty unit."""
    stored, _ = PRECISIONS[run.precision]
    table = UnitParameter(run.arch.embedding[0], UnitBits(stored, stored, stored), False)
    return fsdp_unit(run, [table] if run.arch.tied else [], shard_ranks(run))


def _host_shards(plan: FsdpLayout) -> Iterator[Entry]:
    """Parameters and gradients on the host; only buffers stay on the GPU."""
    buffers = buffer_entry(plan.run, plan.step_instants)
    yield replace(buffers, live={START.name: 1, **buffers.live})
    yield from host_shard_entries(plan, _untied_head(plan.run).shard)


def _step_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """The optimizer's states and temporaries on this rank's shards, and gradient clipping."""
    run, (_, adapter_bits) = plan.run, unit_bits(plan.run)
    total: Num = 0
    largest: Num = 0
    tensors: Num = 0
    for _, count, unit in units(plan):
        total = total + count * unit.trained_elements
        tensors = tensors + count * unit.trained_tensors
        largest = larger(largest, unit.largest_trained)
    tower = tower_shards(run, shard_ranks(run)) if run.trained_tower else []
    for elements in tower:
        total, tensors = total + elements, tensors + 1
        largest = larger(largest, elements)
    if plan.offload:
        yield from host_step_entries(plan, total, largest, tensors, adapter_bits.stored)
        return
    name = run.implementation or OPTIMIZERS[run.optimizer].default
    parameters = parameters_in_order(plan) if run.unrolled else ()
    sizes = [int(parameter.elements) for parameter in parameters if parameter.trained]
    sizes += map(int, tower) if run.unrolled else ()
    yield from optimizer_entries(
        run,
        total,
        adapter_bits.stored,
        plan.step_instants,
        implementation=name,
        largest=largest,
        tensors=tensors,
        sizes=tuple((size, 1) for size in sizes),
    )
