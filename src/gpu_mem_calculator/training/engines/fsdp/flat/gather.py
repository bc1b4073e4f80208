"""Gathered flat parameters, and the copies of shards that are gathered.

With one rank there is nothing to gather: there, a copy of the flat parameter in the compute dtype
exists while a unit computes (`_mp_shard`). torch 2.13 distributed/fsdp: `D` in the sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import attrgetter

from .....ledger.ledger import COMM, GATHERED, PARAM, Entry
from .....ledger.num import EMPTY, Num, larger, nothing
from .....ledger.source import code
from .....pytorch.autograd.events import BlockEvents, EventRecorder
from .....run.phases import FORWARD
from ..accumulation import accumulates, reduces
from ..instants import FsdpInstant
from ..layout import NO_LAYER, LayerPicker, UnitPart, one_layer
from ..options import loss_outside, option
from .layout import PRE_UNSHARD, UNSHARD, FlatLayout
from .startup import LAZY
from .units import FlatUnit

GATHERED_CODE = code("torch 2.13 D/_flat_param.py:1396 unshard, 1816 _free_unsharded_flat_param")
CAST_CODE = code("torch 2.13 D/_flat_param.py:1379 _use_low_precision_shard, 1516: freed after")
ALONE_CODE = code("torch 2.13 D/_flat_param.py:1316 pre_unshard, 1791 post_reshard: NO_SHARD")
VIEWED_CODE = code("torch 2.13 D/_flat_param.py flat_param_to: views of the copy, with offload")
LAZY_CODE = code("torch 2.13 D/_flat_param.py:1222 init_flat_param_attributes")
WITHOUT_ROOT = ("lazy", "reduce.root", "scatter.root", "optimizer")


def gathered_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Gathered parameters: of the root from forward to backward, of the layers at work."""
    part = UnitPart("gathered parameters", PARAM, GATHERED_CODE, UNSHARD, role=GATHERED)
    pick = _gathered_layers(plan)
    yield part.of_root(plan, plan.root.gathered, partial(_root_gathered, plan))
    yield from part.of_layers(plan, attrgetter("gathered"), pick)
    part = UnitPart("copy of the parameters", PARAM, ALONE_CODE, PRE_UNSHARD)
    yield part.of_root(plan, plan.root.alone, _root_at_work)
    yield from part.of_layers(plan, attrgetter("alone"), _at_work(plan))


def _root_at_work(instant: FsdpInstant) -> Num:
    return int(instant.action not in WITHOUT_ROOT)


def _stays_unreduced(plan: FlatLayout, instant: FsdpInstant) -> bool:
    """Whether units that stay gathered after forward are gathered because an earlier micro-batch,
    or this one, does not reduce its gradients (torch 2.13 D/_runtime_utils.py
    _should_free_in_backward).
    """
    if not (plan.stays_gathered and accumulates(plan.run)) or instant.action == "optimizer":
        return False
    forward = instant.step.instant.phase == FORWARD
    return instant.step.later if forward else not reduces(plan.run, instant)


def _root_gathered(plan: FlatLayout, instant: FsdpInstant) -> Num:
    return int(_stays_unreduced(plan, instant)) or _root_at_work(instant)


def _gathered_layers(plan: FlatLayout) -> LayerPicker:
    if not plan.stays_gathered:
        return _at_work(plan)

    def pick(instant: FsdpInstant) -> range:
        if _stays_unreduced(plan, instant):
            return range(len(plan.layers))
        return _gathered_so_far(instant)

    return pick


def _at_work(plan: FlatLayout) -> LayerPicker:
    """The layers that are gathered where each is freed after its forward and its backward."""
    below, behind = int(plan.runs_ahead), int(plan.runs_behind)
    top = len(plan.layers)

    def pick(instant: FsdpInstant) -> range:
        layer, action = instant.layer, instant.action
        if action in ("flat", "regather"):
            return one_layer(layer)
        if action == "root.ahead":
            return one_layer(0)
        if action in ("ahead", "forward"):
            return range(layer, layer + 1 + int(plan.ahead))
        if action == "loss.backward" and loss_outside(plan.run):
            return NO_LAYER  # the root asks for it once the logits have a gradient
        if action in ("prefetch", "loss.backward", "layer", "flatten"):
            return range(layer - below, min(layer + 1, top))
        if action in ("after", "reduce", "scatter"):
            return range(layer - behind, layer)
        return NO_LAYER

    return pick


def _gathered_so_far(instant: FsdpInstant) -> range:
    """The layers that are gathered where each is freed after its backward alone."""
    layer, action = instant.layer, instant.action
    if action in ("after", "reduce", "scatter"):
        return range(layer)
    if action == "root.ahead":
        return one_layer(0)
    return range(layer + 1 + int(action == "ahead")) if layer >= 0 else NO_LAYER


def shard_copy_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Copies of shards that are being gathered, which are freed once they are."""
    gathers = {"flat": 0, "root.ahead": 1, "ahead": 1, "prefetch": -1, "regather": 0, "after": -1}

    def copied(instant: FsdpInstant) -> range:
        step = gathers.get(instant.action)
        stays = plan.stays_gathered and instant.step.instant.phase != FORWARD
        stays = stays or _stays_unreduced(plan, instant)
        return NO_LAYER if step is None or stays else one_layer(instant.layer + step)

    def root_copied(instant: FsdpInstant) -> Num:
        return int(instant.action == "root.flat" and not _stays_unreduced(plan, instant))

    casts = plan.bits.compute != plan.bits.stored
    if plan.offload and not casts and option(plan.run, "use_orig_params"):
        # the parameters are views of the copy as long as the unit is gathered
        part = UnitPart("copy of the shard", COMM, VIEWED_CODE, PRE_UNSHARD)
        yield part.of_root(plan, plan.root.cast, _root_at_work)
        yield from part.of_layers(plan, attrgetter("cast"), _gathered_layers(plan))
        return

    def events(unit: FlatUnit) -> BlockEvents:
        """Under offload, the shard is copied to the GPU and cast there."""
        recorder = EventRecorder()
        cast = recorder.weight(unit.cast)
        recorder.over((recorder.weight(unit.shard),))
        return recorder.forward_only([cast])

    copies = plan.offload and casts and plan.run.unrolled
    part = UnitPart(
        "copy of the shard", COMM, CAST_CODE, PRE_UNSHARD, events=events if copies else None
    )
    yield part.of_root(plan, plan.root.cast, root_copied)
    yield from part.of_layers(plan, attrgetter("cast"), copied)


def lazy_entry(plan: FlatLayout) -> Iterator[Entry]:
    """Buffers that are allocated and freed at once before the first forward: of each unit its cast
    shard, its gathered parameter, and that in the stored dtype.
    """
    recorder, casts = EventRecorder(), plan.bits.compute != plan.bits.stored
    largest = EMPTY
    layers = plan.layers if plan.run.unrolled else range(len(plan.kinds))
    for unit in (plan.root, *(plan.kinds[kind][1] for kind in layers)):
        whole = unit.gathered * plan.bits.stored // plan.bits.compute if casts else EMPTY
        copy = unit.cast + unit.alone if casts else EMPTY
        for size in (copy, unit.gathered, whole):
            if not nothing(size):
                recorder.over((recorder.weight(size),))
                largest = larger(largest, size)
    first = (i.step for i in plan.instants if i.action == "lazy" and i.step.instant.step)
    live: dict[str, Num] = dict.fromkeys((LAZY.name, *(step.name for step in first)), 1)
    name = "buffers that are allocated and freed"
    script = recorder.forward_only(()) if plan.run.unrolled else None
    yield Entry(name, COMM, largest, live, LAZY_CODE, script=script)
