"""Gradients: whole, flat, in reduce-scatter's buffers, and sharded.

Autograd makes one gradient for each parameter, also for frozen ones beside trained ones, and copies
all of a unit's into a flat one. On a CUDA stream of its own the flat one is cast and padded where
that is needed, and reduce-scattered. One rank alone keeps the flat gradient, cast to the dtype of
the parameters. torch 2.13 distributed/fsdp: `D` in the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter

from .....ledger.ledger import COMM, GRAD, RECORDED, Entry
from .....ledger.num import EMPTY, Bytes, Num, nothing, sized
from .....ledger.source import code
from .....run.phases import BACKWARD
from ..accumulation import accumulated_layers, accumulated_root, accumulates, adds_shards, reduces
from ..instants import FsdpInstant
from ..layout import NO_LAYER, UnitPart, during, one_layer
from ..options import loss_outside, option
from ..reduce import has_old_grads, reduced_layers
from .layout import POST_BACKWARD, UNSHARD, FlatLayout
from .units import FlatUnit

FLAT_CODE = code("torch 2.13 autograd/FunctionsManual.cpp split_with_sizes_backward: cat")
REDUCE_CODE = code("torch 2.13 D/_runtime_utils.py:707 _post_backward_hook, 891, 914")
KEPT_CODE = code("torch 2.13 D/_flat_param.py:1689 prepare_gradient_for_optim: until zero_grad")
UNSYNCED_CODE = code("torch 2.13 D/_runtime_utils.py:743: _sync_gradients is false")
SAVED_CODE = code("torch 2.13 D/_runtime_utils.py:914: _saved_grad_shard, until backward is over")
TIED_CODE = code("torch 2.11 csrc/autograd/input_buffer.cpp: added on the consumer's CUDA stream")
HEAD_CODE = code("torch autograd: kept until all of the root's gradients exist")
UNREDUCED = ("regather", "prefetch", "layer", "flatten", "after", "reduce")

SizeAt = Callable[[FlatUnit], Bytes]


def gradient_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Gradients of one unit at a time, until they are reduced."""
    stored, compute, reduce = plan.bits.stored, plan.bits.compute, plan.bits.reduce
    keeps_flat = stored == compute == reduce  # one rank alone keeps the flat gradient itself
    keeps_cast = compute != reduce == stored  # or the flat gradient's cast
    several = plan.root.several

    def cast_until_end(unit: FlatUnit) -> Bytes:
        return unit.cast_grad * several if keeps_cast else unit.cast_grad

    made = ("flatten", "after", "reduce")
    if accumulates(plan.run):
        yield from _accumulated_entries(plan, (*made, "scatter"))
    else:
        flat = UnitPart("flat gradient", COMM, FLAT_CODE, UNSHARD, role=RECORDED)
        yield from _of_units(plan, flat, lambda u: u.flat_grad * several, *made, "scatter")
    kept = UnitPart("flat gradient", COMM, FLAT_CODE, UNSHARD)
    until = made if keeps_flat else (*made, "scatter")
    yield from _of_units(plan, kept, lambda u: u.flat_grad * (1 - several), *until)
    cast = UnitPart("flat gradient, cast", COMM, REDUCE_CODE, POST_BACKWARD)
    yield from _of_units(plan, cast, cast_until_end, "reduce", "scatter", times=_reduces(plan))
    padded = UnitPart("flat gradient, padded", COMM, REDUCE_CODE, POST_BACKWARD)
    size = attrgetter("padded_grad")
    yield from _of_units(plan, padded, size, "reduce", "scatter", times=_reduces(plan))
    yield from _alone_entries(plan)
    yield from _tied_entries(plan)
    if not plan.run.unrolled:  # else the events of layers, head and embedding make them
        yield from _whole_entries(plan)


def _reduces(plan: FlatLayout) -> Callable[[FsdpInstant], Num]:
    return lambda instant: int(reduces(plan.run, instant))


def _accumulated_entries(plan: FlatLayout, made: tuple[str, ...]) -> Iterator[Entry]:
    """Flat gradients that the last micro-batch reduces: the first one's, to which each later one
    adds its own. That stays until the unit is reduced, since autograd's node has a hook.
    """
    of_root = tuple(f"{action}.root" for action in made)

    def later(instant: FsdpInstant) -> Num:
        return int(bool(instant.step.instant.micro_batch))

    layers = partial(accumulated_layers, top=len(plan.layers), made=made)
    kept = UnitPart("accumulated gradients", GRAD, UNSYNCED_CODE, UNSHARD, role=RECORDED)
    yield from kept.of_layers(plan, attrgetter("flat_grad"), layers)
    yield kept.of_root(plan, plan.root.flat_grad, partial(accumulated_root, made=of_root))
    flat = UnitPart("flat gradient", COMM, FLAT_CODE, UNSHARD)
    yield from _of_units(plan, flat, attrgetter("flat_grad"), *made, times=later)


def _of_units(
    plan: FlatLayout,
    part: UnitPart,
    size: SizeAt,
    *actions: str,
    times: Callable[[FsdpInstant], Num] = lambda instant: 1,
) -> Iterator[Entry]:
    """What the layer at work holds at these actions, and the root at its own."""
    of_root = {f"{action}.root" for action in actions}

    def layers(instant: FsdpInstant) -> range:
        return one_layer(instant.layer) if instant.action in actions else NO_LAYER

    yield from part.of_layers(plan, size, layers, lambda instant, unit: times(instant))
    yield part.of_root(plan, size(plan.root), lambda i: times(i) if i.action in of_root else 0)


def _whole_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Whole gradients, one tensor each; the head's wait for the embedding's."""

    def head_waits(instant: FsdpInstant) -> Num:
        waits = instant.action in (*UNREDUCED, "scatter", "embedding")
        return int(waits and instant.layer < len(plan.layers))

    whole = UnitPart("whole gradients", GRAD, FLAT_CODE)
    yield from _of_units(plan, whole, attrgetter("grads"), "flatten")
    head = UnitPart("whole gradients of the head", GRAD, HEAD_CODE)
    yield head.of_root(plan, plan.head_grads, head_waits)


def _tied_entries(plan: FlatLayout) -> Iterator[Entry]:
    """The sum of the two gradients of a table that embedding and head share: a new tensor on the
    CUDA stream that gathers, where autograd adds them. The head's gradient stays, too, until the
    flat one is allocated. While the embedding runs backward, its own entries count the sum.
    """
    if plan.run.arch.tied and not plan.run.frozen:
        part = UnitPart("sum of the tied table's gradients", GRAD, TIED_CODE, UNSHARD)
        size = sized(plan.run.arch.embedding[0].numel, plan.bits.compute)
        yield part.of_root(plan, size, during("flatten.root"))


def _alone_entries(plan: FlatLayout) -> Iterator[Entry]:
    """One rank alone in a later micro-batch: the sum is cast to the reduce dtype and back."""
    bits, alone = plan.bits, 1 - plan.root.several
    if bits.reduce == bits.stored or plan.offload or nothing(alone):
        return

    def sum_again(unit: FlatUnit) -> Bytes:
        cast = unit.reduced if bits.reduce == bits.compute else EMPTY  # else it is counted already
        return (cast + unit.shard_grad) * alone

    part = UnitPart("sum of gradients, cast and cast back", COMM, REDUCE_CODE, POST_BACKWARD)
    yield from _of_units(plan, part, sum_again, "scatter", times=lambda i: int(i.step.later))


def output_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Reduce-scatter's output while it is not the sharded gradient itself: it is cast to the dtype
    of the shards, or added to the gradient of an earlier micro-batch.
    """
    several, casts = plan.root.several, plan.bits.reduce != plan.bits.stored

    def adds(instant: FsdpInstant) -> Num:
        return int(adds_shards(plan.run, instant) and not plan.offload)

    def temporary(instant: FsdpInstant) -> Num:
        return int((casts or adds(instant)) and reduces(plan.run, instant))

    output = UnitPart("reduce-scatter output", COMM, REDUCE_CODE, POST_BACKWARD)
    cast = UnitPart("reduced gradient, cast", COMM, REDUCE_CODE, plan.cast_stream)
    yield from _of_units(plan, output, lambda u: u.reduced * several, "scatter", times=temporary)
    if casts:
        yield from _of_units(plan, cast, lambda u: u.shard_grad * several, "scatter", times=adds)


def _has_old_grads(plan: FlatLayout, instant: FsdpInstant) -> bool:
    """Whether the last step's gradients are alive at an instant. Where the optimizer has the
    model's own parameters, the root frees flat gradients when its backward begins (torch 2.13
    D/_runtime_utils.py:659), so after that of a loss which is computed outside of it.
    """
    run, waits = plan.run, instant.action == "loss.backward" and not instant.step.later
    outside = waits and loss_outside(run) and option(run, "use_orig_params")
    return has_old_grads(plan, instant) or (run.gradients_in_forward and bool(outside))


def sharded_gradient_entries(plan: FlatLayout) -> Iterator[Entry]:
    """The gradient of each shard: until zero_grad, or under offload until backward is over."""

    def old(instant: FsdpInstant) -> bool:
        return _has_old_grads(plan, instant) or instant.action == "optimizer"

    def reduced(instant: FsdpInstant) -> range:
        if plan.offload and instant.step.instant.phase != BACKWARD:
            return NO_LAYER
        adds = adds_shards(plan.run, instant) and not plan.offload
        return reduced_layers(plan, instant, UNREDUCED, old=old(instant), adds=adds)

    def root(instant: FsdpInstant) -> Num:
        kept = adds_shards(plan.run, instant) or old(instant)
        made = instant.action == "scatter.root" and reduces(plan.run, instant)
        return int((kept and not plan.offload) or made)

    bits = plan.bits
    casts = bits.reduce != bits.stored
    flat = bits.stored == bits.compute == bits.reduce and nothing(plan.root.several)
    stream = UNSHARD if flat else plan.cast_stream if casts else POST_BACKWARD
    source = SAVED_CODE if plan.offload else KEPT_CODE
    part = UnitPart("sharded gradients", GRAD, source, stream)
    yield from part.of_layers(plan, attrgetter("shard_grad"), reduced)
    yield part.of_root(plan, plan.root.shard_grad, root)
