"""Start-up of FSDP version 1: the model is wrapped unit by unit, the root last.

A unit's parameters are moved to the GPU, unless they are there, and flattened into one tensor. This
rank's part is copied out of it, then the rest is freed. So for a moment a unit is there twice. A
model that was made on the GPU (`init_device=cuda`) is there as a whole before.
torch 2.13 distributed/fsdp/_init_utils.py: _init_param_handle_from_module.
"""

from __future__ import annotations

from collections.abc import Iterator

from .....ledger.ledger import COMM, FIRST_STEP, PARAM, Entry, Instant
from .....ledger.num import EMPTY, Num, nothing
from .....ledger.source import code
from .....pytorch.autograd.events import BlockEvents, EventRecorder
from .....run.phases import FORWARD
from ....step.broadcast import broadcast_buffers
from ..instants import START
from ..options import option
from ..startup import (
    ROOT,
    host_entries,
    table_bytes,
    tied_entries,
    unsharded_live,
    whole_bytes,
    wrapped_layers,
    wrapping_instants,
)
from .layout import FlatLayout
from .units import FlatUnit

LAZY = Instant(
    name="first.forward.lazy",
    phase=FORWARD,
    title="first step: buffers are allocated and freed",
    step=FIRST_STEP,
    where="forward.lazy",
)
WHOLE_CODE = code("torch 2.13 D/_init_utils.py:500-545: moved to the GPU, or there already")
FLAT_CODE = code("torch 2.13 D/_flat_param.py:838 flatten_tensors: cat")
SHARD_CODE = code("torch 2.13 D/_flat_param.py:1124 _get_shard: equal parts, padded")
UPCAST_CODE = code(
    "accelerate 1.15.0 accelerator.py prepare_model: parameters are views until forward"
)


def startup_instants(plan: FlatLayout) -> tuple[Instant, ...]:
    """The instants before the step; an unrolled run has one, whose events contain the others."""
    if plan.run.unrolled:
        return (START,)
    return (*wrapping_instants(plan, plan.init_device), START, LAZY)


def startup_entries(plan: FlatLayout) -> Iterator[Entry]:
    """Parameters before they are sharded, and the flat one they are copied into."""
    yield from host_entries(plan, plan.init_device, plan.upcast)
    if plan.run.unrolled:
        return
    layers = tuple(wrapped_layers(plan, plan.init_device))
    for kind, (title, _, unit) in enumerate(plan.units):
        live = unsharded_live(plan, plan.init_device, kind)
        size = whole_bytes(unit) // plan.upcast
        yield Entry(f"{title}: unsharded parameters", PARAM, size, live, WHOLE_CODE)
        here = {i.name: 1 for i in layers if i.kind == kind} or {ROOT.name: 1}
        size = unit.flat * unit.several // plan.upcast
        yield Entry(f"{title}: flat parameter", COMM, size, here, FLAT_CODE)
    yield from tied_entries(plan, plan.init_device)


def shard_entries(plan: FlatLayout) -> Iterator[Entry]:
    """This rank's parts of the flat parameters; under offload on the GPU only while a unit is
    wrapped.
    """
    if plan.run.unrolled:
        yield _shards_in_order(plan)
        yield from _before_upcast(plan)
        return
    names = (START.name, LAZY.name, *(i.step.name for i in plan.instants))
    kept = not plan.offload
    always: dict[str, Num] = dict.fromkeys(names, 1) if kept else {}
    layers = tuple(wrapped_layers(plan, plan.init_device))
    for kind, (title, unit) in enumerate(plan.kinds):
        total = plan.layers.count(kind)
        made: dict[str, Num] = {i.name: i.before[kind] * kept + (i.kind == kind) for i in layers}
        made |= {ROOT.name: total} if kept else {}
        yield from _shard_rows(plan, title, unit, made, dict.fromkeys(always, total))
    yield from _shard_rows(plan, "embedding and head", plan.root, {ROOT.name: 1}, always)
    yield from _before_upcast(plan)


def _shard_rows(
    plan: FlatLayout, title: str, unit: FlatUnit, made: dict[str, Num], kept: dict[str, Num]
) -> Iterator[Entry]:
    """A unit's shards: while units are wrapped, and from then on, when they may be upcast."""
    name = f"{title}: sharded parameters"
    if plan.upcast == 1:
        yield Entry(name, PARAM, unit.shard, {**made, **kept}, SHARD_CODE)
        return
    yield Entry(f"{name}, in 16 bits", PARAM, unit.shard // plan.upcast, made, SHARD_CODE)
    yield Entry(name, PARAM, unit.shard, kept, UPCAST_CODE)


def _before_upcast(plan: FlatLayout) -> Iterator[Entry]:
    """Shards in 16 bits: the model's parameters are views of them until the first forward."""
    if plan.upcast > 1:
        shards = [unit.shard // plan.upcast for unit in plan.in_order]
        size, live = sum(shards, EMPTY), {START.name: 1}
        name = "shards before they are upcast"
        yield Entry(name, PARAM, size, live, UPCAST_CODE, tensors=lambda: shards)


def _shards_in_order(plan: FlatLayout) -> Entry:
    """All shards as one entry, with the events of start-up."""
    shards = sum((unit.shard for unit in plan.in_order), EMPTY)
    live: dict[str, Num] = {START.name: 1}
    if plan.offload:  # they go to the host: what remains is the cache
        shards = max(map(whole_bytes, plan.in_order))
    else:
        live |= {i.step.name: 1 for i in plan.instants}
    return Entry("model: sharded parameters", PARAM, shards, live, SHARD_CODE, script=_events(plan))


def _events(plan: FlatLayout) -> BlockEvents:
    """Allocations and frees of start-up."""
    recorder, kept = EventRecorder(), []
    sends = bool(option(plan.run, "sync_module_states")) and not nothing(plan.run.mesh.dp - 1)
    orig, units = bool(option(plan.run, "use_orig_params")), list(plan.in_order)
    made: list[list[int]] = []
    if plan.init_device == "cuda":
        made = _model(plan, recorder, units)
    for index, unit in enumerate(units):
        whole = made[index] if made else _moved(recorder, unit, plan.upcast)
        sent = [size // plan.upcast for size in unit.originals]
        for size in broadcast_buffers(sent) if sends else ():
            recorder.over((recorder.weight(size),))
        flat = recorder.weight(unit.flat // plan.upcast)
        if nothing(unit.several):
            kept.append(flat)
        else:
            kept.append(recorder.weight(unit.shard // plan.upcast))
            recorder.over((flat,))
        recorder.over(whole if orig else whole[::-1])
        if plan.offload:
            recorder.over((kept.pop(),))
    if plan.upcast > 1:
        halves, kept = kept, [recorder.weight(unit.shard) for unit in units]
        recorder.over(halves)
    return recorder.forward_only(kept)


def _moved(recorder: EventRecorder, unit: FlatUnit, upcast: int) -> list[int]:
    """A unit's parameters, moved to the GPU: the least deep first (torch 2.13 D/_init_utils.py
    _move_module_to_device, _get_modules_to_materialize).
    """
    tensors = [-1] * len(unit.originals)
    for index in sorted(range(len(tensors)), key=unit.depths.__getitem__):
        tensors[index] = recorder.weight(unit.originals[index] // upcast)
    return tensors


def _model(plan: FlatLayout, recorder: EventRecorder, units: list[FlatUnit]) -> list[list[int]]:
    """The whole model on the GPU, in the order of its modules: embedding, layers, head."""
    *layers, root = units
    after = sum(1 for _ in plan.run.arch.after_weights())
    before = len(root.originals) - after
    first = list(map(recorder.weight, root.originals[:before]))
    made = [list(map(recorder.weight, unit.originals)) for unit in layers]
    last = list(map(recorder.weight, root.originals[before:]))
    if plan.run.arch.tied:
        recorder.over((recorder.weight(table_bytes(plan)),))
    return [*made, [*first, *last]]
