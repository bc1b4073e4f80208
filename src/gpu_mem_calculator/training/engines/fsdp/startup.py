"""Start-up of FSDP2 from a model that has memory: `fully_shard` on each layer, then on the rest.

Each call moves its parameters to the GPU, unless they are there, and copies this rank's shards out
of them. The parameters are freed when it returns. A model on the meta device has no memory before
its shards. torch 2.13 distributed/fsdp/_fully_shard: `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.ledger import CPU, PARAM, Entry, Instant
from ....ledger.num import EMPTY, Bytes, Num, sized
from ....ledger.source import code
from ....pytorch.autograd.events import BlockEvents, EventRecorder
from .flat.startup import HOST_CODE, MODEL, ROOT, TIED_CODE, wrapped_layers
from .instants import START
from .layout import FsdpLayout
from .options import PRECISIONS, option
from .units import FsdpUnit

WHOLE_CODE = code("torch 2.13 F/_fsdp_init.py:369, F/_fsdp_param.py:334: freed after the call")
SHARD_CODE = code("torch 2.13 F/_fsdp_param.py:298-316: rows padded to equal shards")
META = "meta"


def start_device(plan: FsdpLayout) -> str:
    """Where the model is before it is sharded."""
    return str(option(plan.run, "init_device") or META)


def startup_instants(plan: FsdpLayout) -> tuple[Instant, ...]:
    """The instants before the step; an unrolled run has one, whose events contain the others."""
    where = start_device(plan)
    if where == META or plan.run.unrolled:
        return (START,)
    whole = (MODEL,) if where == "cuda" else ()
    return (*whole, *wrapped_layers(plan, where), ROOT, START)


def start_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Shards, and the parameters before they are sharded."""
    where = start_device(plan)
    if where == "cpu":
        size = sum((_whole(unit) for unit in _units(plan)), EMPTY)
        live: dict[str, Num] = {START.name: 1}
        yield Entry("model before it is sharded", PARAM, size, live, HOST_CODE, place=CPU)
    if plan.run.unrolled:
        yield _shards_in_order(plan, where)
        return
    layers, on_gpu = tuple(wrapped_layers(plan, where)), where == "cuda"
    names = (START.name, *(i.step.name for i in plan.instants))
    for kind, (title, unit) in enumerate(plan.kinds):
        total = plan.layers.count(kind)
        made: dict[str, Num] = {i.name: i.before[kind] + (i.kind == kind) for i in layers}
        made |= dict.fromkeys((ROOT.name, *names), total)
        yield Entry(f"{title}: sharded parameters", PARAM, unit.shard, made, SHARD_CODE)
        left = {MODEL.name: total, **{i.name: total - i.before[kind] for i in layers}}
        live = dict(left) if on_gpu else {i.name: 1 for i in layers if i.kind == kind}
        yield Entry(f"{title}: unsharded parameters", PARAM, _whole(unit), live, WHOLE_CODE)
    before = (MODEL.name, *(i.name for i in layers)) if on_gpu else ()
    for title, unit in plan.ends:
        live = dict.fromkeys((ROOT.name, *names), 1)
        yield Entry(f"{title}: sharded parameters", PARAM, unit.shard, live, SHARD_CODE)
        live = dict.fromkeys((ROOT.name, *before), 1)
        yield Entry(f"{title}: unsharded parameters", PARAM, _whole(unit), live, WHOLE_CODE)
    if on_gpu and plan.run.arch.tied:
        name = "head before it is tied to the embedding"
        yield Entry(name, PARAM, _table(plan), {MODEL.name: 1}, TIED_CODE)


def _whole(unit: FsdpUnit) -> Bytes:
    return sum((parameter.original for parameter in unit.parameters), EMPTY)


def _table(plan: FsdpLayout) -> Bytes:
    """Bytes of the embedding, as it is stored."""
    return sized(plan.run.arch.embedding[0].numel, PRECISIONS[plan.run.precision][0])


def _units(plan: FsdpLayout) -> Iterator[FsdpUnit]:
    """Every unit in the order in which it is sharded."""
    for kind in plan.layers:
        yield plan.kinds[kind][1]
    for _, unit in plan.ends:
        yield unit


def _shards_in_order(plan: FsdpLayout, where: str) -> Entry:
    """All shards as one entry, with the events of start-up."""
    size = sum((unit.shard for unit in _units(plan)), EMPTY)
    live: dict[str, Num] = dict.fromkeys((START.name, *(i.step.name for i in plan.instants)), 1)
    script = _events(plan, where)
    return Entry("model: sharded parameters", PARAM, size, live, SHARD_CODE, script=script)


def _events(plan: FsdpLayout, where: str) -> BlockEvents:
    """Allocations and frees of start-up. An embedding that is a unit stays until the head is
    sharded, too: a variable refers to its weight (accelerate 1.15.0 utils/fsdp_utils.py
    fsdp2_prepare_model: input_weight).
    """
    recorder, units = EventRecorder(), list(_units(plan))
    made: list[list[int]] = []
    if where == "cuda":
        made = [[recorder.weight(p.original) for p in unit.parameters] for unit in units]
        if plan.run.arch.tied:
            recorder.over((recorder.weight(_table(plan)),))
    kept: list[int] = []
    named: list[int] = []
    for index, unit in enumerate(units):
        whole = made[index] if made else [recorder.weight(p.original) for p in unit.parameters]
        kept += [recorder.weight(parameter.shard) for parameter in unit.parameters]
        if unit is plan.root and plan.head is not None:
            named = whole
        else:
            recorder.over(whole)
    recorder.over(named)
    return recorder.forward_only(kept)
