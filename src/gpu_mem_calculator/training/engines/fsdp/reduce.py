"""Gradients: whole, in reduce-scatter's buffers, and sharded.

Line numbers: torch 2.13 distributed/fsdp/_fully_shard, `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from ....ledger.ledger import COMM, GRAD, LAST_GRADIENT, Entry
from ....ledger.num import EMPTY, Bytes, Num, holds, nothing
from ....ledger.source import code
from ....run.phases import FORWARD
from .accumulation import (
    accumulated_head,
    accumulated_layers,
    accumulated_root,
    accumulates,
    adds_shards,
    reduces,
)
from .instants import FsdpInstant
from .layout import NO_LAYER, SCATTER, FsdpLayout, UnitLayout, UnitPart, during, one_layer
from .units import FsdpUnit

UNREDUCED = ("regather", "prefetch", "layer")  # the layer has not reduced its gradients yet
REDUCE_CODE = code("torch 2.13 F/_fsdp_collectives.py:570-606 foreach_reduce")
KEPT_CODE = code("torch 2.13 F/_fsdp_param_group.py:607-612: reduce_grads is false")
HEAD_CODE = code("torch 2.13 F/_fsdp_state.py:411-415: the root reduces when backward is over")


def _head_waits(plan: FsdpLayout, instant: FsdpInstant) -> Num:
    """The head's gradients exist from the loss's backward on, so not while the last layer is
    gathered before it.
    """
    waits = instant.action in (*UNREDUCED, "reduce", "scatter", "embedding")
    return int(waits and instant.layer < len(plan.layers))


def accumulated_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Whole gradients of all units, until the last micro-batch reduces them. In the first one the
    root's wait for the embedding's.
    """
    top = len(plan.layers)

    def layers(instant: FsdpInstant) -> range:
        made = ("reduce", "scatter")
        return accumulated_layers(instant, top, made=made, freed=("scatter",))

    def root(instant: FsdpInstant) -> Num:
        made = ("reduce.root", "scatter.root")
        return accumulated_root(instant, made=made, freed=("scatter.root",))

    whole = UnitPart("accumulated gradients", GRAD, KEPT_CODE)
    yield from whole.of_layers(plan, attrgetter("grads"), layers)
    yield from whole.of_head(plan, attrgetter("grads"), lambda i: accumulated_head(i, top))
    yield whole.of_root(plan, plan.root.grads, root)
    if plan.head is None:
        head = UnitPart("whole gradients of the head", GRAD, HEAD_CODE)
        waits = partial(_head_waits, plan)
        yield head.of_root(plan, plan.head_grads, lambda i: 0 if i.step.later else waits(i))


def reduced_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Whole gradients and reduce-scatter's input, of one unit at a time.

    The last gradient stays alive until reduce-scatter's output is made, because a loop's variable
    refers to it (F/_fsdp_collectives.py foreach_reduce); one rank alone runs no such loop.
    """
    source = code("torch 2.13 F/_fsdp_param_group.py:647-658: freed when the next unit reduces")

    def inputs(instant: FsdpInstant) -> range:
        if not reduces(plan.run, instant):
            return NO_LAYER
        if instant.action in ("reduce", "scatter"):
            return one_layer(instant.layer)
        above = instant.action in (*UNREDUCED, "root.again", "embedding")
        return one_layer(instant.layer + 1) if above else NO_LAYER

    def last(unit: FsdpUnit) -> Bytes:
        return unit.last_grad * plan.several

    def lasts(instant: FsdpInstant) -> range:
        scatters = instant.action == "scatter" and reduces(plan.run, instant)
        return one_layer(instant.layer) if scatters else NO_LAYER

    def reducing(*actions: str) -> Callable[[FsdpInstant], Num]:
        return lambda i: int(i.action in actions and reduces(plan.run, i))

    def head_inputs(instant: FsdpInstant) -> Num:
        """The head's stays until the last layer reduces."""
        waits = instant.action in UNREDUCED and instant.layer == len(plan.layers) - 1
        held = waits or instant.action in ("reduce.head", "scatter.head")
        return int(held and reduces(plan.run, instant))

    part = UnitPart("reduce-scatter input", COMM, source)
    yield from part.of_layers(plan, attrgetter("reduce_in"), inputs)
    yield from part.of_head(plan, attrgetter("reduce_in"), head_inputs)
    yield part.of_root(plan, plan.root.reduce_in, reducing("reduce.root", "scatter.root"))
    part = UnitPart("last gradient", COMM, REDUCE_CODE, role=LAST_GRADIENT)
    yield from part.of_layers(plan, last, lasts)
    yield from part.of_head(plan, last, reducing("scatter.head"))
    yield part.of_root(plan, last(plan.root), reducing("scatter.root"))
    if plan.run.unrolled:  # the events of layers, head and embedding make them
        return
    yield from accumulated_entries(plan) if accumulates(plan.run) else _whole_entries(plan)


def _whole_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Whole gradients of one unit at a time; the head's wait for the embedding's."""

    def reducing(instant: FsdpInstant) -> range:
        return one_layer(instant.layer) if instant.action == "reduce" else NO_LAYER

    whole = UnitPart("whole gradients", GRAD, REDUCE_CODE)
    yield from whole.of_layers(plan, attrgetter("grads"), reducing)
    if plan.head is None:
        head = UnitPart("whole gradients of the head", GRAD, HEAD_CODE)
        yield head.of_root(plan, plan.head_grads, partial(_head_waits, plan))
    yield from whole.of_head(plan, attrgetter("grads"), during("reduce.head"))
    yield whole.of_root(plan, plan.root.grads, during("reduce.root"))


def output_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Reduce-scatter's output, and its cast to the dtype of the shards.

    In a first micro-batch one of them is the sharded gradient; in later ones both are added to
    it, and under offload they are copied to the host. Where replicas all-reduce an output it
    stays until backward is over.
    """
    made = code("torch 2.13 F/_fsdp_collectives.py:611-616, 664-672, F/_fsdp_param_group.py:753")
    cast = code("torch 2.13 F/_fsdp_collectives.py:696-709")
    top = len(plan.layers)
    after = (*UNREDUCED, "reduce", "root.again", "embedding", "reduce.root", "scatter.root")

    def temporary(instant: FsdpInstant) -> bool:
        """Whether the outputs are not the sharded gradients themselves."""
        return adds_shards(plan.run, instant) or plan.offload

    def copies(instant: FsdpInstant, unit: FsdpUnit) -> Num:
        if not reduces(plan.run, instant):
            return 0
        return 1 if temporary(instant) else holds(unit.converted > 0)

    def casts_again(instant: FsdpInstant) -> bool:
        return temporary(instant) and reduces(plan.run, instant)

    def outputs(instant: FsdpInstant) -> range:
        if instant.action == "scatter":
            return range(instant.layer, top if plan.replicas else instant.layer + 1)
        stays = plan.replicas and instant.action in after
        return range(instant.layer + 1, top) if stays else NO_LAYER

    def casts(instant: FsdpInstant) -> range:
        casting = instant.action == "scatter" and casts_again(instant)
        return one_layer(instant.layer) if casting else NO_LAYER

    def head(instant: FsdpInstant) -> Num:
        stays = plan.replicas and instant.layer < top and instant.action in (*after, "scatter")
        made = stays or instant.action == "scatter.head"
        return copies(instant, plan.head) if made and plan.head is not None else 0

    def root(instant: FsdpInstant) -> Num:
        return copies(instant, plan.root) if instant.action == "scatter.root" else 0

    def end_cast(action: str) -> Callable[[FsdpInstant], Num]:
        return lambda i: int(i.action == action and casts_again(i))

    output = UnitPart("reduce-scatter output", COMM, made, SCATTER)
    casted = UnitPart("reduced gradients, cast", COMM, cast, plan.cast_stream)
    yield from output.of_layers(plan, attrgetter("reduced"), outputs, copies)
    yield from casted.of_layers(plan, attrgetter("converted"), casts)
    yield from output.of_head(plan, attrgetter("reduced"), head)
    yield from casted.of_head(plan, attrgetter("converted"), end_cast("scatter.head"))
    yield output.of_root(plan, plan.root.reduced, root)
    yield casted.of_root(plan, plan.root.converted, end_cast("scatter.root"))


def has_old_grads(plan: UnitLayout, instant: FsdpInstant) -> bool:
    """Whether the last step's sharded gradients are alive at an instant of the first forward."""
    named, later = instant.step.instant, instant.step.later
    return plan.run.gradients_in_forward and named.phase == FORWARD and not (later or named.step)


def reduced_layers(
    plan: UnitLayout, instant: FsdpInstant, unreduced: Sequence[str], *, old: bool, adds: bool
) -> range:
    """The layers whose sharded gradients are alive.

    unreduced: actions before which the layer at work has not reduced its gradients
    old: those of the last step are, or the optimizer steps
    adds: those of an earlier micro-batch are
    """
    top, action = len(plan.layers), instant.action
    if old:
        return range(top)
    if not reduces(plan.run, instant):
        return NO_LAYER
    if adds or (instant.layer < 0 and instant.step.instant.phase != FORWARD):
        return range(top)
    if action in unreduced:
        return range(instant.layer + 1, top)
    return range(instant.layer, top) if action == "scatter" else NO_LAYER


def sharded_gradient_entries(plan: FsdpLayout, tower: tuple[Bytes, ...] = ()) -> Iterator[Entry]:
    """Sharded gradients: a flat tensor for each unit, alive until zero_grad. `tower`: bytes of the
    shards of a vision tower's blocks, whose gradients are there when the root's are.
    """
    source = code("torch 2.13 F/_fsdp_collectives.py:696-709: views of the reduced output")
    top = len(plan.layers)

    def old(instant: FsdpInstant) -> bool:
        return has_old_grads(plan, instant) or instant.action == "optimizer"

    def kept(instant: FsdpInstant) -> bool:
        return old(instant) or adds_shards(plan.run, instant)

    def reduced(instant: FsdpInstant) -> range:
        adds, unreduced = adds_shards(plan.run, instant), (*UNREDUCED, "reduce")
        return reduced_layers(plan, instant, unreduced, old=old(instant), adds=adds)

    def reduced_head(instant: FsdpInstant) -> Num:
        below = instant.layer < top and instant.step.instant.phase != FORWARD
        made = (instant.action == "scatter.head" or below) and reduces(plan.run, instant)
        return int(kept(instant) or made)

    def stream(unit: FsdpUnit) -> int:
        return SCATTER if nothing(unit.converted) else plan.cast_stream

    def root(instant: FsdpInstant) -> Num:
        made = instant.action == "scatter.root" and reduces(plan.run, instant)
        return int(kept(instant) or made)

    name, layers_stream = "sharded gradients", max(stream(unit) for _, unit in plan.kinds)
    part = UnitPart(name, GRAD, source, layers_stream)
    yield from part.of_layers(plan, attrgetter("shard_grads"), reduced)
    part = UnitPart(name, GRAD, source, stream(plan.root))
    yield part.of_root(plan, plan.root.shard_grads, root)
    yield from part.of_head(plan, attrgetter("shard_grads"), reduced_head)
    if tower and plan.run.trained_tower:
        blocks = part.of_root(plan, sum(tower, EMPTY), root)
        yield replace(blocks, name="vision tower: sharded gradients", tensors=lambda: tower)
