"""Gathered parameters: flat all-gather buffers, and the whole tensors copied out of them.

Line numbers: torch 2.13 distributed/fsdp/_fully_shard, `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter

from ....ledger.ledger import COMM, PARAM, Entry
from ....ledger.num import Bytes, Num, nothing
from ....ledger.source import code
from .instants import FsdpInstant
from .layout import COPY_IN, NO_LAYER, FsdpLayout, UnitPart, during, one_layer
from .options import loss_outside, wraps_tied_ends
from .units import FsdpUnit, shard_copy_events, single_rank_events

GATHERED = ("gather", "forward", "regather", "prefetch", "layer")  # the layer is gathered
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


def buffer_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """The flat buffers that units are gathered into, and the cast shards copied into them."""
    source = code(
        "torch 2.13 F/_fsdp_collectives.py:351; kept and freed as in "
        "F/_fsdp_param_group.py:429-489, 584"
    )
    cast = code("torch 2.13 F/_fsdp_collectives.py:384-427: gone once they are copied in")
    top, several = len(plan.layers), plan.several
    reshards = not plan.stays_gathered
    below = dict.fromkeys(("prefetch", "layer", "reduce", "scatter"), 1) if reshards else {}
    same = {"forward", *(("regather",) if reshards else ())}
    ends = plan.head is not None
    prefetched = ("reduce.head", "scatter.head") if ends else ("loss.backward",)
    last = {"head.flat", "head"} if ends else {"loss"}  # the last layer's buffer is alive
    last |= set(prefetched if reshards else ())
    if not ends and loss_outside(plan.run):
        last -= {"loss"}
    if wraps_tied_ends(plan.run) or _root_freed(plan):
        last -= {"loss.backward"}

    def buffers(instant: FsdpInstant) -> range:
        layer, action = instant.layer, instant.action
        if action in ("flat", "gather"):
            return range(layer - 1, layer + 1)
        if action in last:
            return one_layer(top - 1)
        if action in same or action in below:
            return one_layer(layer - below.get(action, 0))
        return NO_LAYER

    def casts(instant: FsdpInstant) -> range:
        gathers = {"flat": instant.layer, "prefetch": instant.layer - 1}.get(instant.action)
        return NO_LAYER if gathers is None else one_layer(gathers)

    def below_layers(instant: FsdpInstant) -> bool:
        """Whether the embedding, as a unit, is prefetched for its backward."""
        return ends and reshards and instant.layer == 0 and instant.action in below

    def root(instant: FsdpInstant) -> Num:
        first = instant.action in ("flat", "gather") and instant.layer == 0
        own = instant.action in ("root.flat", "root", "root.out", "root.again")
        return int(first or own or below_layers(instant))

    def root_cast(instant: FsdpInstant) -> Num:
        prefetched = instant.action == "prefetch" and below_layers(instant)
        return int(instant.action == "root.flat" or prefetched)

    events = shard_copy_events if plan.offload and plan.run.unrolled else None
    shards = UnitPart("shards, cast", COMM, cast, COPY_IN, events=events)
    yield shards.of_root(plan, plan.root.cast * several, root_cast)
    yield from shards.of_head(plan, lambda u: u.cast * several, during("head.flat"))
    yield from shards.of_layers(plan, lambda u: u.cast * several, casts)
    buffer = UnitPart("all-gather buffer", COMM, source, COPY_IN)
    yield buffer.of_root(plan, plan.root.gathered * several, root)
    # the last buffer is freed when the root returns, which in transformers computes the loss
    held = during("head.flat", "head", *(() if loss_outside(plan.run) else ("loss",)))
    yield from buffer.of_head(plan, lambda u: u.gathered * several, held)
    yield from buffer.of_layers(plan, lambda u: u.gathered * several, buffers)
