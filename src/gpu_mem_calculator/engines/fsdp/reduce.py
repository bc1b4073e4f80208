"""Gradients on their way: whole, in reduce-scatter, sharded.

Line numbers: torch 2.13 distributed/fsdp/_fully_shard, `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from ...ledger.ledger import COMM, GRAD, Entry
from ...ledger.num import Num, holds, nothing
from ...ledger.source import code
from ...run.phases import FORWARD
from .instants import FsdpInstant
from .layout import NONE, SCATTER, FsdpLayout, Pick, layer_entries, one, only, root_entry
from .units import FsdpUnit

BEFORE = ("regather", "prefetch", "layer")  # a layer has not reduced yet


def _at(place: str) -> Pick:
    return lambda spot: one(spot.layer) if spot.at == place else NONE


def reduced_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Whole gradients on their way into reduce-scatter, one unit at a time.

    The last gradient is named until its output is made (F/_fsdp_collectives.py foreach_reduce:
    a loop's variable), which one rank alone does not loop for.
    """
    source = code("torch 2.13 F/_fsdp_param_group.py:647-658: freed when the next unit reduces")
    made = code("torch 2.13 F/_fsdp_collectives.py:570-606 foreach_reduce")

    def inputs(spot: FsdpInstant) -> range:
        if spot.at in ("reduce", "scatter"):
            return one(spot.layer)
        return one(spot.layer + 1) if spot.at in BEFORE or spot.at == "embedding" else NONE

    def last(unit: FsdpUnit) -> Num:
        return unit.last_grad * plan.several

    yield from layer_entries(plan, "reduce-scatter input", COMM, attrgetter("reduce_in"), inputs,
                             source)  # fmt: skip
    yield root_entry(plan, "reduce-scatter input", COMM, plan.root.reduce_in,
                     only("reduce.root", "scatter.root"), source)  # fmt: skip
    yield from layer_entries(plan, "last gradient", COMM, last, _at("scatter"), made)
    yield root_entry(plan, "last gradient", COMM, last(plan.root), only("scatter.root"), made)
    if plan.run.unrolled:  # scripts of layers, head and embedding make them
        return
    yield from layer_entries(plan, "whole gradients", GRAD, attrgetter("grads"), _at("reduce"),
                             made)  # fmt: skip
    yield root_entry(
        plan, "whole gradients of the head", GRAD, plan.head,
        only(*BEFORE, "reduce", "scatter", "embedding"),
        code("torch 2.13 F/_fsdp_state.py:411-415: the root reduces when backward is over"),
    )  # fmt: skip
    yield root_entry(plan, "whole gradients", GRAD, plan.root.grads, only("reduce.root"), made)


def output_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """What reduce-scatter makes, and its cast to the dtype of the shards.

    In a first micro-batch one of them is the sharded gradient; in later ones both are added to
    it, and under offload they are copied to the host. Where replicas all-reduce an output it
    stays until backward is over.
    """
    made = code("torch 2.13 F/_fsdp_collectives.py:611-616, 664-672, F/_fsdp_param_group.py:753")
    cast = code("torch 2.13 F/_fsdp_collectives.py:696-709")
    top = len(plan.layers)
    behind = (*BEFORE, "reduce", "embedding", "reduce.root", "scatter.root")

    def fresh(spot: FsdpInstant) -> bool:
        return spot.beat.later or plan.offload

    def stays(spot: FsdpInstant, unit: FsdpUnit) -> Num:
        return 1 if fresh(spot) else holds(unit.converted > 0)

    def outputs(spot: FsdpInstant) -> range:
        if spot.at == "scatter":
            return range(spot.layer, top if plan.replicas else spot.layer + 1)
        return range(spot.layer + 1, top) if plan.replicas and spot.at in behind else NONE

    def casts(spot: FsdpInstant) -> range:
        return one(spot.layer) if spot.at == "scatter" and fresh(spot) else NONE

    yield from layer_entries(plan, "reduce-scatter output", COMM, attrgetter("reduced"), outputs,
                             made, times=stays, stream=SCATTER)  # fmt: skip
    yield from layer_entries(plan, "reduced gradients, cast", COMM, attrgetter("converted"), casts,
                             cast, stream=plan.cast_stream)  # fmt: skip
    yield root_entry(
        plan, "reduce-scatter output", COMM, plan.root.reduced,
        lambda spot: stays(spot, plan.root) if spot.at == "scatter.root" else 0, made,
        stream=SCATTER,
    )  # fmt: skip
    yield root_entry(
        plan, "reduced gradients, cast", COMM, plan.root.converted,
        lambda spot: int(spot.at == "scatter.root" and fresh(spot)), cast, stream=plan.cast_stream,
    )  # fmt: skip


def sharded_gradient_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Sharded gradients: a flat tensor for each unit, kept until zero_grad."""
    source = code("torch 2.13 F/_fsdp_collectives.py:696-709: views of the reduced output")
    top = len(plan.layers)

    def there(spot: FsdpInstant) -> range:
        if spot.beat.later or (spot.layer < 0 and spot.beat.instant.phase != FORWARD):
            return range(top)
        if spot.at in BEFORE or spot.at == "reduce":
            return range(spot.layer + 1, top)
        return range(spot.layer, top) if spot.at == "scatter" else NONE

    def stream(unit: FsdpUnit) -> int:
        return SCATTER if nothing(unit.converted) else plan.cast_stream

    yield from layer_entries(
        plan, "sharded gradients", GRAD, attrgetter("shard_grads"), there, source,
        stream=max(stream(unit) for _, unit in plan.kinds),
    )  # fmt: skip
    yield root_entry(
        plan, "sharded gradients", GRAD, plan.root.shard_grads,
        lambda spot: int(spot.beat.later or spot.at == "scatter.root"), source,
        stream=stream(plan.root),
    )  # fmt: skip
