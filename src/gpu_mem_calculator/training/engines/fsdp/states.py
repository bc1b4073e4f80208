"""What a rank of FSDP2 holds for its parameters: shards, optimizer states, and of the units at work
the flat all-gather buffers and the whole tensors copied out of them.

Line numbers: torch 2.13 distributed/fsdp/_fully_shard, `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from ....ledger.ledger import COMM, PARAM, Entry
from ....ledger.num import EMPTY, Bytes, Num, nothing, sized
from ....ledger.source import code
from ....run.run import Run
from ...optimizers import OPTIMIZERS
from ...step.layer_groups import LayerGroups
from ...step.states import buffer_entry
from .cache import ShardEntries, cached_without_tokens
from .instants import START, FsdpInstant
from .layout import (
    COPY_IN,
    NO_LAYER,
    FsdpLayout,
    UnitPart,
    during,
    fsdp_layout,
    one_layer,
    parameters_in_order,
    shard_rows,
)
from .offload import host_shard_entries, host_step_entries, staging_entries, trained_shards
from .options import PRECISIONS, loss_outside, shard_ranks, unit_bits, wraps_tied_ends
from .reduce import output_entries, reduced_entries, sharded_gradient_entries
from .startup import META, start_device, start_entries, startup_instants
from .units import (
    FsdpUnit,
    UnitBits,
    UnitParameter,
    fsdp_unit,
    shard_copy_events,
    single_rank_events,
    tower_shards,
)

GATHERED = ("gather", "forward", "regather", "prefetch", "layer")  # the layer is gathered
BELOW = ("prefetch", "layer", "reduce", "scatter")  # the layer below is in its flat buffer
LOSS = ("loss", "loss.backward")


def gathered_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Whole parameters, one tensor each."""
    copied = code("torch 2.13 F/_fsdp_collectives.py:457: copied out of the gathered buffer")

    def whole_layers(instant: FsdpInstant) -> range:
        if plan.stays_gathered:
            freed = instant.action in ("flat", "reduce", "scatter")
            return range(instant.layer + (not freed))
        return one_layer(instant.layer) if instant.action in GATHERED else NO_LAYER

    def tensors(unit: FsdpUnit) -> Iterable[Bytes]:
        return (parameter.whole for parameter in unit.parameters)

    single_rank = plan.run.unrolled and nothing(plan.several)
    events = partial(single_rank_events, offload=plan.offload) if single_rank else None
    part = UnitPart("gathered parameters", PARAM, copied, tensors=tensors, events=events)
    loss = () if _root_freed(plan) else LOSS
    held = during("root", "flat", *GATHERED, *loss, "reduce", "scatter", "embedding")
    if plan.head is not None:
        held = _held_embedding(plan)
    yield part.of_root(plan, plan.root.gathered, held)
    yield from part.of_head(plan, attrgetter("gathered"), during("head", *LOSS))
    yield from part.of_layers(plan, attrgetter("gathered"), whole_layers)


def _root_freed(plan: FsdpLayout) -> bool:
    """Whether the root is resharded before the loss is computed, and gathered after it."""
    return loss_outside(plan.run) and plan.reshards_root


def _held_embedding(plan: FsdpLayout) -> Callable[[FsdpInstant], Num]:
    """Whether the embedding is gathered, where it is a unit: while it runs forward or backward, and
    in between if units stay gathered.
    """
    own = ("root", "root.out", "root.again", "embedding")
    reduced = ("reduce.root", "scatter.root", "root.flat", "optimizer")

    def held(instant: FsdpInstant) -> Num:
        if plan.stays_gathered:
            return int(instant.action not in reduced)
        return int(instant.action in own)

    return held


def _embedding_ahead(plan: FsdpLayout, instant: FsdpInstant) -> bool:
    """Whether the embedding, as a unit, is prefetched for its backward."""
    first = plan.head is not None and instant.layer == 0
    return first and not plan.stays_gathered and instant.action in BELOW


def cast_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """The cast shards that are copied into the flat buffers."""
    source = code("torch 2.13 F/_fsdp_collectives.py:384-427: gone once they are copied in")

    def layers(instant: FsdpInstant) -> range:
        gathers = {"flat": instant.layer, "prefetch": instant.layer - 1}.get(instant.action)
        return NO_LAYER if gathers is None else one_layer(gathers)

    def root(instant: FsdpInstant) -> Num:
        prefetched = instant.action == "prefetch" and _embedding_ahead(plan, instant)
        return int(instant.action == "root.flat" or prefetched)

    events = shard_copy_events if plan.offload and plan.run.unrolled else None
    part = UnitPart("shards, cast", COMM, source, COPY_IN, events=events)
    yield part.of_root(plan, plan.root.cast * plan.several, root)
    yield from part.of_head(plan, lambda u: u.cast * plan.several, during("head.flat"))
    yield from part.of_layers(plan, lambda u: u.cast * plan.several, layers)


def _last_gathered(plan: FsdpLayout) -> set[str]:
    """The actions between forward and backward at which the last layer's buffer is alive."""
    reshards = not plan.stays_gathered
    if plan.head is not None:
        return {"head.flat", "head", *(("reduce.head", "scatter.head") if reshards else ())}
    waits = wraps_tied_ends(plan.run) or _root_freed(plan)
    again = {"loss.backward"} if reshards and not waits else set()
    return again if loss_outside(plan.run) else again | {"loss"}


def buffer_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """The flat buffers that units are gathered into."""
    source = code(
        "torch 2.13 F/_fsdp_collectives.py:351; kept and freed as in "
        "F/_fsdp_param_group.py:429-489, 584"
    )
    last, reshards = _last_gathered(plan), not plan.stays_gathered

    def layers(instant: FsdpInstant) -> range:
        layer, action = instant.layer, instant.action
        if action in ("flat", "gather"):
            return range(layer - 1, layer + 1)
        if action in last:
            return one_layer(len(plan.layers) - 1)
        if action == "forward" or (reshards and action == "regather"):
            return one_layer(layer)
        return one_layer(layer - 1) if reshards and action in BELOW else NO_LAYER

    def root(instant: FsdpInstant) -> Num:
        first = instant.action in ("flat", "gather") and instant.layer == 0
        own = instant.action in ("root.flat", "root", "root.out", "root.again")
        return int(first or own or _embedding_ahead(plan, instant))

    part = UnitPart("all-gather buffer", COMM, source, COPY_IN)
    yield part.of_root(plan, plan.root.gathered * plan.several, root)
    # the last buffer is freed when the root returns, which in transformers computes the loss
    held = during("head.flat", "head", *(() if loss_outside(plan.run) else ("loss",)))
    yield from part.of_head(plan, lambda u: u.gathered * plan.several, held)
    yield from part.of_layers(plan, lambda u: u.gathered * plan.several, layers)


@cached_without_tokens
def state_entries(run: Run, stack: LayerGroups) -> ShardEntries:
    """The entries of a run's parameters; cached for equal runs but for batch and sequence."""
    plan = fsdp_layout(run, stack)
    units = (
        *staging_entries(plan),
        *gathered_entries(plan),
        *cast_entries(plan),
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
    tower = tower_shards(run, shard_ranks(run)) if run.trained_tower else []
    trained = trained_shards(plan, tower)
    if plan.offload:
        yield from host_step_entries(plan, trained, adapter_bits.stored)
        return
    parameters = parameters_in_order(plan) if run.unrolled else ()
    sizes = [int(parameter.elements) for parameter in parameters if parameter.trained]
    sizes += map(int, tower) if run.unrolled else ()
    default, bits = OPTIMIZERS[run.optimizer].default, adapter_bits.stored
    yield from trained.stepped(plan, bits, default, clipping=run.clipping, sizes=sizes)
