"""The units of a run, the instants of its step, and entries of what units hold at them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate

from msgspec import Struct

from ...autograd.events import BlockEvents
from ...ledger.ledger import Entry
from ...ledger.num import Num, nothing
from ...ledger.remember import remembered
from ...ledger.source import Source
from ...run.run import Run
from .instants import FsdpInstant
from .units import FsdpUnit, ParameterBytes

# FSDP's streams beside torch's own, each with a pool of blocks
# (torch 2.13 F/_fsdp_param_group.py:75-104 FSDPCommContext)
COPY_IN, SCATTER, ALL_REDUCE = 1, 2, 3

Pick = Callable[
    [FsdpInstant], range
]  # the layers that hold something; there are none below the first
Tensors = Callable[[FsdpUnit], Iterable[Num]]
Scripts = Callable[[FsdpUnit], BlockEvents]
NONE = range(0)


class FsdpLayout(Struct, frozen=True, kw_only=True):
    """The units of a run and the instants of its step."""

    run: Run
    kinds: tuple[tuple[str, FsdpUnit], ...]  # the distinct layers: a title and their unit
    layers: tuple[int, ...]  # for each layer of the stack, which of them it is
    root: FsdpUnit
    head: Num  # bytes of the whole gradients that the root has once the loss is through
    several: Num  # 1 where a shard group has more than one rank: only then buffers are gathered
    keeps: bool  # layers stay gathered from forward to backward
    replicas: bool  # gradients are all-reduced after they are reduce-scattered
    offload: bool = False  # shards, their gradients and the optimizer are on the host
    spots: tuple[FsdpInstant, ...]

    @property
    def cast_stream(self) -> int:
        """Where reduced gradients are cast: behind the all-reduce, if there is one."""
        return ALL_REDUCE if self.replicas else SCATTER


def one(layer: int) -> range:
    """A layer by itself."""
    return range(layer, layer + 1)


def layer_entries(
    plan: FsdpLayout,
    name: str,
    kind: str,
    size: Callable[[FsdpUnit], Num],
    pick: Pick,
    source: Source,
    *,
    times: Callable[[FsdpInstant, FsdpUnit], Num] | None = None,
    stream: int = 0,
    tensors: Tensors | None = None,
    script: Scripts | None = None,
) -> Iterator[Entry]:
    """One entry for each distinct layer; in an unrolled run two, of every other layer, so that
    what one layer lets go is freed before the next one makes its own.
    """
    top = len(plan.layers)
    picked = [(s, max(r.start, 0), min(r.stop, top)) for s in plan.spots if (r := pick(s))]
    for index, (title, unit) in enumerate(plan.kinds):
        for alike in (
            _alike(plan.layers, index, plan.run.unrolled) if not nothing(size(unit)) else ()
        ):
            live = {s.beat.name: alike[high] - alike[low] for s, low, high in picked
                    if low < high and alike[high] > alike[low]}  # fmt: skip
            if times is not None:
                live = {s.beat.name: live[s.beat.name] * times(s, unit) for s, _, _ in picked
                        if s.beat.name in live}  # fmt: skip
            if live:
                yield Entry(
                    name=f"{title}: {name}", kind=kind, bytes=size(unit), live=live, source=source,
                    cuda_stream=stream, script=script and script(unit),
                    tensors=tensors and partial(tensors, unit),
                )  # fmt: skip


@remembered(64, always=True)
def _alike(layers: tuple[int, ...], kind: int, unrolled: bool) -> list[list[int]]:
    """How many layers below each are of a kind, of all of them or of every other one."""
    turns = (0, 1) if unrolled else (None,)
    return [list(accumulate((own == kind and turn in (None, i % 2)
                             for i, own in enumerate(layers)), initial=0))
            for turn in turns]  # fmt: skip


def root_entry(
    plan: FsdpLayout,
    name: str,
    kind: str,
    size: Num,
    holds: Callable[[FsdpInstant], Num],
    source: Source,
    *,
    stream: int = 0,
    tensors: Tensors | None = None,
    script: Scripts | None = None,
) -> Entry:
    """What the root holds at some spots."""
    live = {s.beat.name: n for s in plan.spots if not nothing(n := holds(s))}
    return Entry(
        name=f"embedding and head: {name}", kind=kind, bytes=size, source=source, live=live,
        cuda_stream=stream, tensors=tensors and partial(tensors, plan.root),
        script=script and script(plan.root),
    )  # fmt: skip


def only(*places: str) -> Callable[[FsdpInstant], Num]:
    """Held at these places alone."""
    chosen = frozenset(places)
    return lambda spot: int(spot.at in chosen)


def shard_rows(plan: FsdpLayout) -> Iterator[tuple[str, Num, Callable[[], list[Num]] | None]]:
    """A title, bytes, and in an unrolled run the tensors, in the order of the model."""
    if plan.run.unrolled:
        parts = list(in_order(plan))
        yield "model", sum(part.shard for part in parts), lambda: [part.shard for part in parts]
        return
    for kind, (title, one) in enumerate(plan.kinds):
        yield title, plan.layers.count(kind) * one.shard, None
    yield "embedding and head", plan.root.shard, None


def in_order(plan: FsdpLayout) -> Iterator[ParameterBytes]:
    """Every parameter of the model: the embedding's, the layers', those behind them."""
    before = len(plan.root.parts) - sum(1 for _ in plan.run.arch.after_weights())
    yield from plan.root.parts[:before]
    for kind in plan.layers:
        yield from plan.kinds[kind][1].parts
    yield from plan.root.parts[before:]
