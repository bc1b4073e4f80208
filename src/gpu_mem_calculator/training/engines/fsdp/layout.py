"""The units of a run, the instants of its step, and entries of what units hold at them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

from msgspec import Struct

from ....ledger.ledger import Entry
from ....ledger.num import EMPTY, Bytes, Num, holds, nothing, sized
from ....ledger.remember import remembered
from ....ledger.source import Source
from ....pytorch.autograd.events import BlockEvents
from ....run.run import Run
from ...step.instants import Instants
from ...step.layer_groups import LayerGroups
from .accumulation import accumulates
from .instants import FsdpInstant, FsdpShape, fsdp_instants
from .options import (
    HYBRID,
    KEEP_GATHERED,
    loss_outside,
    option,
    shard_ranks,
    unit_bits,
    wraps_ends,
    wraps_tied_ends,
)
from .units import (
    FsdpUnit,
    ParameterBytes,
    UnitBits,
    UnitParameter,
    embedding_parameters,
    fsdp_unit,
    head_parameters,
    layer_parameters,
)

# FSDP's CUDA streams beside torch's own, each with a pool of allocator blocks
# (torch 2.13 F/_fsdp_param_group.py:75-104 FSDPCommContext)
COPY_IN, SCATTER, ALL_REDUCE = 1, 2, 3

LayerPicker = Callable[[FsdpInstant], range]  # the layers that hold something at an instant
UnitTensors = Callable[[Any], Iterable[Bytes]]  # from a unit to the bytes of each tensor
UnitEvents = Callable[[Any], BlockEvents]
NO_LAYER = range(0)


class UnitLayout(Struct, frozen=True, kw_only=True):
    """The units of a run and the instants of its step, of either version of FSDP.

    kinds: a title and the unit of each distinct layer
    layers: for each layer of the model, the index of its kind
    root: the unit of everything else: embedding, final norm, head
    bits: of every parameter of the base model
    head_grads: bytes of the whole gradients that the root has after the loss's backward
    stays_gathered: where several ranks share them, layers stay gathered from forward to backward
    offload: shards, their gradients and the optimizer are on the host
    """

    run: Run
    kinds: tuple[tuple[str, Any], ...]
    layers: tuple[int, ...]
    root: Any
    bits: UnitBits
    head_grads: Bytes
    stays_gathered: bool
    offload: bool
    instants: tuple[FsdpInstant, ...]

    @property
    def ends(self) -> tuple[tuple[str, Any], ...]:
        """The units that are no layers, each with its title."""
        return (("embedding and head", self.root),)

    @property
    def units(self) -> Iterator[tuple[str, int, Any]]:
        """A title, the number of such units, and the unit."""
        for kind, (title, unit) in enumerate(self.kinds):
            yield title, self.layers.count(kind), unit
        for title, unit in self.ends:
            yield title, 1, unit

    @property
    def in_order(self) -> Iterator[Any]:
        """Every unit in the order in which it is sharded."""
        yield from (self.kinds[kind][1] for kind in self.layers)
        yield from (unit for _, unit in self.ends)

    @property
    def step_instants(self) -> Instants:
        """The instants, as the other packages take them."""
        return tuple(instant.step for instant in self.instants)


class FsdpLayout(UnitLayout, frozen=True, kw_only=True):
    """The units of a run and the instants of its step, of version 2.

    root: of the embedding alone where there is a `head`
    head: the unit of final norm and head, where they are one
    reshards_root: the root is resharded after forward, and gathered again for backward
    several: 1 where a shard group has more than one rank; only then buffers are gathered
    replicas: gradients are all-reduced after they are reduce-scattered
    """

    root: FsdpUnit
    head: FsdpUnit | None
    reshards_root: bool
    several: Num
    replicas: bool

    @property
    def ends(self) -> tuple[tuple[str, Any], ...]:
        """The units that are no layers, each with its title."""
        if self.head is None:
            return super().ends
        return (("embedding", self.root), ("head", self.head))

    @property
    def cast_stream(self) -> int:
        """The CUDA stream that casts reduced gradients: the all-reduce's, if there is one."""
        return ALL_REDUCE if self.replicas else SCATTER


def shared_fields(
    run: Run, stack: LayerGroups, unit: Callable[[Iterable[UnitParameter]], Any]
) -> dict[str, Any]:
    """The fields of a layout that both versions have but for root and instants. `unit`: makes the
    unit of some parameters.
    """
    base, adapter = unit_bits(run)
    kinds = {id(group.layer): group.layer for group in stack}
    numbers = {key: number for number, key in enumerate(kinds)}
    units = (
        (f"{layer.kind} layers", unit(layer_parameters(run, layer, base, adapter)))
        for layer in kinds.values()
    )
    arch = run.arch
    head = arch.after_parameters + (arch.embedding[0].numel if arch.tied else 0)
    return {
        "run": run,
        "kinds": tuple(units),
        "layers": tuple(numbers[id(layer)] for layer in arch.layers),
        "bits": base,
        "head_grads": EMPTY if run.frozen else sized(head, base.compute),
        "stays_gathered": option(run, "sharding_strategy") in KEEP_GATHERED,
        "offload": bool(option(run, "cpu_offload")),
    }


def fsdp_layout(run: Run, stack: LayerGroups) -> FsdpLayout:
    """The units and instants of a run. `stack`: the layer groups of the model."""
    base, adapter = unit_bits(run)
    ranks, offload = shard_ranks(run), bool(option(run, "cpu_offload"))
    unit = partial(fsdp_unit, run, ranks=ranks, offload=offload)
    fields = shared_fields(run, stack, unit)
    reshard_root = option(run, "reshard_root_after_forward")
    reshards_root = not fields["stays_gathered"] if reshard_root is None else bool(reshard_root)
    reshards_root = reshards_root and not wraps_tied_ends(run)
    before, after = embedding_parameters(run, base), head_parameters(run, base)
    ends = wraps_ends(run)
    fields |= {"head_grads": EMPTY} if ends else {}
    several = holds(ranks > 1)
    replicas = option(run, "sharding_strategy") in (*HYBRID, "no_shard")
    shape = FsdpShape(
        replicas=replicas,
        reshards_root=reshards_root,
        ends=ends,
        gathers_after_loss=wraps_tied_ends(run) or (loss_outside(run) and reshards_root),
        accumulates=accumulates(run),
        reshards_layers=not fields["stays_gathered"],
        casts=offload or base.stored != base.compute or adapter.stored != adapter.compute,
        single_rank=not nothing(1 - several),
        offload=offload,
        every=run.unrolled,
    )
    return FsdpLayout(
        **fields,
        root=unit(before if ends else [*before, *after]),
        head=unit(after) if ends else None,
        reshards_root=reshards_root,
        several=several,
        replicas=replicas,
        instants=tuple(fsdp_instants(stack, run.micro_batches, shape)),
    )


def one_layer(layer: int) -> range:
    """A range of one layer; that below the first is empty in `UnitPart`."""
    return range(layer, layer + 1)


class UnitPart(Struct, frozen=True):
    """Something that units hold: its name and kind, and who says so.

    stream: number of the CUDA stream that allocates it
    tensors, events: its tensors, or the events that allocate them, in an unrolled run
    role: by which a stream's writer finds it
    """

    name: str
    kind: str
    source: Source
    stream: int = 0
    tensors: UnitTensors | None = None
    events: UnitEvents | None = None
    role: str = ""

    def _entry(self, title: str, unit: Any, size: Bytes, live: dict[str, Num]) -> Entry:
        return Entry(
            f"{title}: {self.name}",
            self.kind,
            size,
            live,
            self.source,
            cuda_stream=self.stream,
            role=self.role,
            script=self.events and self.events(unit),
            tensors=self.tensors and partial(self.tensors, unit),
        )

    def of_root(self, plan: UnitLayout, size: Bytes, copies: Callable[[FsdpInstant], Num]) -> Entry:
        """`size` bytes of the root unit, with `copies` of them at each instant."""
        live = {i.step.name: n for i in plan.instants if not nothing(n := copies(i))}
        return self._entry(plan.ends[0][0], plan.root, size, live)

    def of_head(
        self,
        plan: FsdpLayout,
        size: Callable[[FsdpUnit], Bytes],
        copies: Callable[[FsdpInstant], Num],
    ) -> Iterator[Entry]:
        """The bytes of the head's unit, if it is one, with `copies` of them at each instant."""
        if plan.head is not None and not nothing(size(plan.head)):
            live = {i.step.name: n for i in plan.instants if not nothing(n := copies(i))}
            yield self._entry("head", plan.head, size(plan.head), live)

    def of_layers(
        self,
        plan: UnitLayout,
        size: Callable[[Any], Bytes],
        pick: LayerPicker,
        times: Callable[[FsdpInstant, Any], Num] | None = None,
    ) -> Iterator[Entry]:
        """One entry for each kind of layer; in an unrolled run two, of the even and the odd layers,
        so that the tensors of one layer are freed before the next layer allocates its own.

        size: bytes of one layer's unit
        pick: the layers that hold them at an instant, `times` so often
        """
        top = len(plan.layers)
        picked = [(i, max(r.start, 0), min(r.stop, top)) for i in plan.instants if (r := pick(i))]
        for index, (title, unit) in enumerate(plan.kinds):
            if nothing(size(unit)):
                continue
            for counts in _layers_below(plan.layers, index, plan.run.unrolled):
                held = [(i, counts[high] - counts[low]) for i, low, high in picked if low < high]
                live: dict[str, Num] = {i.step.name: n for i, n in held if n > 0}
                if times is not None:
                    live = {i.step.name: n * times(i, unit) for i, n in held if n > 0}
                if live:
                    yield self._entry(title, unit, size(unit), live)


@remembered(64, always=True)
def _layers_below(layers: tuple[int, ...], kind: int, unrolled: bool) -> list[list[int]]:
    """For each layer, the number of layers of a kind below it: one list of all layers, or in an
    unrolled run one of the even and one of the odd layers.
    """
    parities = (0, 1) if unrolled else (None,)
    rows = []
    for parity in parities:
        below = (other == kind and parity in (None, i % 2) for i, other in enumerate(layers))
        rows.append(list(accumulate(below, initial=0)))
    return rows


def during(*actions: str) -> Callable[[FsdpInstant], Num]:
    """1 at the instants of these actions, else 0."""
    chosen = frozenset(actions)
    return lambda instant: int(instant.action in chosen)


def shard_rows(plan: FsdpLayout) -> Iterator[tuple[str, Bytes, Callable[[], list[Bytes]] | None]]:
    """A title, bytes of the shards, and in an unrolled run bytes of each, in the model's order."""
    if plan.run.unrolled:
        shards = [parameter.shard for parameter in parameters_in_order(plan)]
        yield "model", sum(shards, EMPTY), lambda: shards
        return
    for title, count, unit in plan.units:
        yield title, count * unit.shard, None


def parameters_in_order(plan: FsdpLayout) -> Iterator[ParameterBytes]:
    """Every parameter of the model: the embedding's, the layers', those after the layers."""
    ends = [parameter for _, unit in plan.ends for parameter in unit.parameters]
    before = len(ends) - sum(1 for _ in plan.run.arch.after_weights())
    yield from ends[:before]
    for kind in plan.layers:
        yield from plan.kinds[kind][1].parameters
    yield from ends[before:]
