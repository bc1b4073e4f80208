"""Start-up of FSDP: what both versions share, and version 2 from a model that has memory.

`fully_shard` is called on each layer, then on the rest. Each call moves its parameters to the GPU,
unless they are there, and copies this rank's shards out of them. The parameters are freed when it
returns. A model on the meta device has no memory before its shards. torch 2.13
distributed/fsdp/_fully_shard: `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....ledger.ledger import CPU, PARAM, Entry, Instant
from ....ledger.num import EMPTY, Bytes, Num, sized
from ....ledger.source import code
from ....pytorch.autograd.events import BlockEvents, EventRecorder
from ....run.phases import STARTUP
from .instants import START
from .layout import FsdpLayout, UnitLayout
from .options import option

MODEL = Instant(name="startup.model", phase=STARTUP, title="start-up: whole model on the GPU")
ROOT = Instant(name="startup.root", phase=STARTUP, title="start-up: embedding and head are sharded")
TIED_CODE = code("transformers 5.17.0 modeling_utils.py: lm_head is made, then tied")
HOST_CODE = code("every rank makes the model on the host: init_device=cpu")
WHOLE_CODE = code("torch 2.13 F/_fsdp_init.py:369, F/_fsdp_param.py:334: freed after the call")
SHARD_CODE = code("torch 2.13 F/_fsdp_param.py:298-316: rows padded to equal shards")
META = "meta"


class WrappedLayer(Instant, frozen=True, kw_only=True):
    """A layer is being wrapped: the index of its kind, and how many of each kind were before."""

    kind: int
    before: tuple[int, ...]


def wrapped_layers(plan: UnitLayout, init_device: str) -> Iterator[WrappedLayer]:
    """For each kind of layer, the one at whose wrapping most is alive: its last, since shards add
    up; its first where the whole model is on the GPU, which becomes less.
    """
    for kind, (title, _) in enumerate(plan.kinds):
        found = [layer for layer, other in enumerate(plan.layers) if other == kind]
        layer = found[0 if init_device == "cuda" else -1]
        counts = tuple(plan.layers[:layer].count(other) for other in range(len(plan.kinds)))
        yield WrappedLayer(
            name=f"startup.layer.{kind}",
            phase=STARTUP,
            title=f"start-up: {title} are sharded",
            kind=kind,
            before=counts,
        )


def wrapping_instants(plan: UnitLayout, init_device: str) -> tuple[Instant, ...]:
    """The instants while units are wrapped, the root last."""
    whole = (MODEL,) if init_device == "cuda" else ()
    return (*whole, *wrapped_layers(plan, init_device), ROOT)


def whole_bytes(unit: Any) -> Bytes:
    """Bytes of a unit's parameters before they are sharded."""
    whole: Bytes = sum(unit.originals, EMPTY)
    return whole


def table_bytes(plan: UnitLayout) -> Bytes:
    """Bytes of the embedding, as it is stored."""
    return sized(plan.run.arch.embedding[0].numel, plan.bits.stored)


def unsharded_live(plan: UnitLayout, init_device: str, kind: int) -> dict[str, Num]:
    """The layers of a kind, or past the last kind one other unit, until they are sharded."""
    layers, on_gpu = tuple(wrapped_layers(plan, init_device)), init_device == "cuda"
    if kind >= len(plan.kinds):
        before = (MODEL.name, *(i.name for i in layers)) if on_gpu else ()
        return dict.fromkeys((ROOT.name, *before), 1)
    total = plan.layers.count(kind)
    if on_gpu:
        return {MODEL.name: total, **{i.name: total - i.before[kind] for i in layers}}
    return {i.name: 1 for i in layers if i.kind == kind}


def host_entries(plan: UnitLayout, init_device: str, upcast: int = 1) -> Iterator[Entry]:
    """The whole model on the host, where it is no pages of its files. `upcast`: how many times as
    long a shard is as a parameter.
    """
    if init_device == "cpu" and plan.bits.stored // upcast != plan.run.stored_bits:
        size = sum(map(whole_bytes, plan.in_order), EMPTY) // upcast
        live = {START.name: 1}
        yield Entry("model before it is sharded", PARAM, size, live, HOST_CODE, place=CPU)


def tied_entries(plan: UnitLayout, init_device: str) -> Iterator[Entry]:
    """The head of a model on the GPU that is tied to the embedding later."""
    if init_device == "cuda" and plan.run.arch.tied:
        name, live = "head before it is tied to the embedding", {MODEL.name: 1}
        yield Entry(name, PARAM, table_bytes(plan), live, TIED_CODE)


def start_device(plan: FsdpLayout) -> str:
    """Where the model is before it is sharded."""
    return str(option(plan.run, "init_device") or META)


def startup_instants(plan: FsdpLayout) -> tuple[Instant, ...]:
    """The instants before the step; an unrolled run has one, whose events contain the others."""
    where = start_device(plan)
    if where == META or plan.run.unrolled:
        return (START,)
    return (*wrapping_instants(plan, where), START)


def start_entries(plan: FsdpLayout) -> Iterator[Entry]:
    """Shards, and the parameters before they are sharded."""
    where = start_device(plan)
    yield from host_entries(plan, where)
    if plan.run.unrolled:
        yield _shards_in_order(plan, where)
        return
    layers = tuple(wrapped_layers(plan, where))
    names = (ROOT.name, START.name, *(i.step.name for i in plan.instants))
    for kind, (title, count, unit) in enumerate(plan.units):
        end = kind >= len(plan.kinds)
        made = {} if end else {i.name: i.before[kind] + (i.kind == kind) for i in layers}
        made |= dict.fromkeys(names, count)
        yield Entry(f"{title}: sharded parameters", PARAM, unit.shard, made, SHARD_CODE)
        live = unsharded_live(plan, where, kind)
        yield Entry(f"{title}: unsharded parameters", PARAM, whole_bytes(unit), live, WHOLE_CODE)
    yield from tied_entries(plan, where)


def _shards_in_order(plan: FsdpLayout, where: str) -> Entry:
    """All shards as one entry, with the events of start-up."""
    size = sum((unit.shard for unit in plan.in_order), EMPTY)
    live: dict[str, Num] = dict.fromkeys((START.name, *(i.step.name for i in plan.instants)), 1)
    script = _events(plan, where)
    return Entry("model: sharded parameters", PARAM, size, live, SHARD_CODE, script=script)


def _events(plan: FsdpLayout, where: str) -> BlockEvents:
    """Allocations and frees of start-up. An embedding that is a unit stays until the head is
    sharded, too: a variable refers to its weight (accelerate 1.15.0 utils/fsdp_utils.py
    fsdp2_prepare_model: input_weight).
    """
    recorder, units = EventRecorder(), list(plan.in_order)
    made: list[list[int]] = []
    if where == "cuda":
        made = [list(map(recorder.weight, unit.originals)) for unit in units]
        if plan.run.arch.tied:
            recorder.over((recorder.weight(table_bytes(plan)),))
    kept: list[int] = []
    named: list[int] = []
    for index, unit in enumerate(units):
        whole = made[index] if made else list(map(recorder.weight, unit.originals))
        kept += [recorder.weight(parameter.shard) for parameter in unit.parameters]
        if unit is plan.root and plan.head is not None:
            named = whole
        else:
            recorder.over(whole)
    recorder.over(named)
    return recorder.forward_only(kept)
