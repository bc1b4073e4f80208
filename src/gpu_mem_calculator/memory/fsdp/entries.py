"""What FSDP2's units hold at each instant, as ledger entries.

Line numbers: torch 2.13 distributed/fsdp/_fully_shard, `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from msgspec import Struct

from ...ledger.ledger import ACT, COMM, GRAD, PARAM, RUNTIME, Entry
from ...ledger.num import Num, holds, nothing
from ...ledger.source import Source, code
from ..activations import Walks
from ..run import Run
from .timeline import Spot
from .units import Unit


class Plan(Struct, frozen=True, kw_only=True):
    """The units of a run and the instants of its step."""

    run: Run
    kinds: tuple[tuple[str, Unit], ...]  # the distinct layers: a title and their unit
    layers: tuple[int, ...]  # for each layer of the stack, which of them it is
    root: Unit
    head: Num  # bytes of the whole gradients that the root has once the loss is through
    several: Num  # 1 where a shard group has more than one rank: only then buffers are gathered
    keeps: bool  # layers stay gathered from forward to backward
    replicas: bool  # gradients are all-reduced after they are reduce-scattered
    offload: bool = False  # shards, their gradients and the optimizer are on the host
    spots: tuple[Spot, ...]


def _layer_entries(
    plan: Plan, name: str, kind: str, size: Callable[[Unit], Num],
    copies: Callable[[Spot, int], Num], source: Source,
) -> Iterator[Entry]:  # fmt: skip
    """One entry for each distinct layer; `copies` says how many of a spot's layers hold it."""
    for index, (title, one) in enumerate(plan.kinds):
        live = {spot.beat.name: copies(spot, index) for spot in plan.spots}
        alive = {instant: count for instant, count in live.items() if not nothing(count)}
        if alive and not nothing(size(one)):
            yield Entry(name=f"{title}: {name}", kind=kind, bytes=size(one), live=alive,
                        source=source)  # fmt: skip


def _root_entry(
    plan: Plan, name: str, kind: str, size: Num, at: tuple[str, ...], source: Source
) -> Entry:
    live = {spot.beat.name: 1 for spot in plan.spots if spot.at in at}
    return Entry(name=f"embedding and head: {name}", kind=kind, bytes=size, live=live,
                 source=source)  # fmt: skip


def gathered_entries(plan: Plan) -> Iterator[Entry]:
    """Whole parameters, and the flat buffers they are gathered into and copied from."""
    copied = code("torch 2.13 F/_fsdp_collectives.py:457: copied out of the gathered buffer")
    buffer = code("torch 2.13 F/_fsdp_collectives.py:351; kept and freed as in "
                  "F/_fsdp_param_group.py:429-489, 584")  # fmt: skip
    top = len(plan.layers)

    def whole(spot: Spot, kind: int) -> Num:
        if plan.keeps:
            ends = {"reduce": spot.layer, "reduce.root": 0, "optimizer": 0}
            return plan.layers[: ends.get(spot.at, spot.layer + 1)].count(kind)
        here = spot.at in ("first", "switch", "forward", "layer")
        return int(here and plan.layers[spot.layer] == kind)

    def flat(spot: Spot, kind: int) -> Num:
        layer = spot.layer
        own = {"first": (0,), "switch": (layer - 1, layer), "forward": (layer,), "loss": (top - 1,)}
        if not plan.keeps:
            below = (layer - 1,) if layer > 0 else ()
            own |= {"loss.backward": (top - 1,), "layer": below, "reduce": below}
        return sum(plan.layers[i] == kind for i in own.get(spot.at, ())) * plan.several

    yield from _layer_entries(plan, "gathered parameters", PARAM, lambda u: u.gathered, whole,
                              copied)  # fmt: skip
    yield from _layer_entries(plan, "all-gather buffer", COMM, lambda u: u.gathered, flat, buffer)
    yield _root_entry(
        plan, "gathered parameters", PARAM, plan.root.gathered,
        ("first", "switch", "forward", "loss", "root", "loss.backward", "layer", "reduce",
         "embedding"),
        copied,
    )  # fmt: skip
    yield _root_entry(plan, "all-gather buffer", COMM, plan.root.gathered * plan.several,
                      ("first", "root"), buffer)  # fmt: skip


def reduced_entries(plan: Plan) -> Iterator[Entry]:
    """Whole gradients on their way through reduce-scatter, one unit at a time."""
    source = code("torch 2.13 F/_fsdp_param_group.py:647-658: freed when the next unit reduces")
    made = code("torch 2.13 F/_fsdp_collectives.py:597-616 foreach_reduce")
    top = len(plan.layers)

    def inputs(spot: Spot, kind: int) -> Num:
        layer = {"layer": spot.layer + 1, "reduce": spot.layer, "embedding": 0}.get(spot.at, top)
        return int(layer < top and plan.layers[layer] == kind)

    def own(spot: Spot, kind: int) -> Num:
        return int(spot.at == "reduce" and plan.layers[spot.layer] == kind)

    def above(spot: Spot, kind: int) -> Num:
        backward = spot.at in ("layer", "reduce", "embedding", "reduce.root")
        return plan.layers[spot.layer + 1 :].count(kind) if backward else 0

    yield from _layer_entries(plan, "reduce-scatter input", COMM, lambda u: u.reduce_in, inputs,
                              source)  # fmt: skip
    yield from _layer_entries(plan, "gradients being reduced", GRAD, lambda u: u.reducing, own,
                              made)  # fmt: skip
    if plan.replicas:
        yield from _layer_entries(
            plan, "reduced gradients until the all-reduce is over", COMM,
            lambda u: u.reduced * (1 if plan.offload else holds(u.converted > 0)), above,
            code("torch 2.13 F/_fsdp_collectives.py:664-672, F/_fsdp_param_group.py:753-768"),
        )  # fmt: skip
    yield _root_entry(plan, "reduce-scatter input", COMM, plan.root.reduce_in, ("reduce.root",),
                      source)  # fmt: skip
    yield _root_entry(plan, "gradients being reduced", GRAD, plan.root.reducing, ("reduce.root",),
                      made)  # fmt: skip
    yield _root_entry(
        plan, "whole gradients of the head", GRAD, plan.head, ("layer", "reduce", "embedding"),
        code("torch 2.13 F/_fsdp_state.py:411-415: the root reduces when backward is over"),
    )  # fmt: skip


def sharded_gradient_entries(plan: Plan) -> Iterator[Entry]:
    """Sharded gradients: a flat tensor for each unit, kept until zero_grad."""
    source = code("torch 2.13 F/_fsdp_collectives.py:696-709: views of the reduced output")
    rest = code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp should_split")
    unsplit = "blocks the allocator does not split: gradients"
    parts = (("sharded gradients", GRAD, "shard_grads", source),
             (unsplit, RUNTIME, "grads_slack", rest))  # fmt: skip
    done = {s.beat.name: 1 for s in plan.spots if s.beat.later}
    top = len(plan.layers)

    def there(spot: Spot, kind: int) -> Num:
        ends = {"layer": spot.layer + 1, "reduce": spot.layer + 1}
        low = 0 if spot.beat.later or spot.layer < 0 else ends.get(spot.at, top)
        return plan.layers[low:].count(kind)

    for name, kind, field, why in parts:
        pick: Callable[[Unit], Num] = attrgetter(field)
        yield from _layer_entries(plan, name, kind, pick, there, why)
        yield Entry(name=f"embedding and head: {name}", kind=kind, bytes=pick(plan.root),
                    live=done, source=why)  # fmt: skip


def between_entries(plan: Plan, done: Walks) -> Iterator[Entry]:
    """Activations while no block computes: what the loss keeps, a gradient on its way down."""
    at = {"root": ("loss: kept for backward", done.head.saved_bytes),
          "reduce": ("gradient of the layer's input", done.layers[0].input_bytes),
          "first": ("output of the embedding", done.layers[0].input_bytes),
          "switch": ("input of the last layer", done.layers[0].input_bytes)}  # fmt: skip
    source = code("torch 2.13 F/_fsdp_state.py: hooks before and after each unit")
    for place, (name, size) in at.items():
        live = {spot.beat.name: 1 for spot in plan.spots if spot.at == place}
        yield Entry(name=name, kind=ACT, bytes=size, live=live, source=source)
