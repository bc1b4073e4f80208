"""What FSDP2's units hold at each instant, as ledger entries.

Line numbers: torch 2.13 distributed/fsdp/_fully_shard, `F` in the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter

from msgspec import Struct

from ...ledger.ledger import ACT, COMM, GRAD, PARAM, Entry
from ...ledger.num import Num, holds, nothing
from ...ledger.source import Source, code
from ..activations import Walks
from ..run import Run
from ..script import Script
from ..timeline import FORWARD
from .timeline import Spot
from .units import Unit, alone_script, copies_script


COPY_IN, SCATTER, ALL_REDUCE = 1, 2, 3  # FSDP's streams beside torch's own
# (torch 2.13 F/_fsdp_param_group.py:75-104 FSDPCommContext); each has a pool of blocks


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

    @property
    def cast_stream(self) -> int:
        """Where reduced gradients are cast: behind the all-reduce, if there is one."""
        return ALL_REDUCE if self.replicas else SCATTER


Copies = Callable[[Spot, int, int | None], Num]  # how many layers of a kind hold something
Tensors = Callable[[Unit], Iterable[Num]]
Scripts = Callable[[Unit], Script]


def _layer_entries(
    plan: Plan, name: str, kind: str, size: Callable[[Unit], Num], copies: Copies, source: Source,
    *, stream: int = 0, tensors: Tensors | None = None, script: Scripts | None = None,
) -> Iterator[Entry]:  # fmt: skip
    """One entry for each distinct layer; in an unrolled run two, of every other layer, so that
    what one layer lets go is freed before the next one makes its own.
    """
    turns: tuple[int | None, ...] = (0, 1) if plan.run.unrolled else (None,)
    for index, (title, one) in enumerate(plan.kinds):
        for turn in () if nothing(size(one)) else turns:
            live = {s.beat.name: n for s in plan.spots
                    if not nothing(n := copies(s, index, turn))}  # fmt: skip
            if live:
                yield Entry(name=f"{title}: {name}", kind=kind, bytes=size(one), live=live,
                            source=source, cuda_stream=stream, script=script and script(one),
                            tensors=tensors and partial(tensors, one))  # fmt: skip


def _root_entry(
    plan: Plan, name: str, kind: str, size: Num, holds: Callable[[Spot], Num], source: Source,
    *, stream: int = 0, tensors: Tensors | None = None, script: Scripts | None = None,
) -> Entry:  # fmt: skip
    live = {spot.beat.name: holds(spot) for spot in plan.spots}
    return Entry(
        name=f"embedding and head: {name}", kind=kind, bytes=size, source=source,
        live={instant: count for instant, count in live.items() if not nothing(count)},
        cuda_stream=stream, tensors=tensors and partial(tensors, plan.root),
        script=script and script(plan.root),
    )  # fmt: skip


def _only(*places: str) -> Callable[[Spot], Num]:
    return lambda spot: int(spot.at in places)


def _layers(plan: Plan, pick: Callable[[Spot], Iterable[int]]) -> Copies:
    """How many of the layers that are picked are of a kind; there are none below the first."""
    top = len(plan.layers)

    def copies(spot: Spot, kind: int, turn: int | None) -> Num:
        return sum(0 <= i < top and plan.layers[i] == kind and turn in (None, i % 2)
                   for i in pick(spot))  # fmt: skip

    return copies


def gathered_entries(plan: Plan) -> Iterator[Entry]:
    """Whole parameters, one tensor each."""
    copied = code("torch 2.13 F/_fsdp_collectives.py:457: copied out of the gathered buffer")
    here = ("gather", "forward", "regather", "prefetch", "layer")

    def whole(spot: Spot) -> Iterable[int]:
        if plan.keeps:
            return range(spot.layer + (spot.at not in ("flat", "reduce", "scatter")))
        return (spot.layer,) if spot.at in here else ()

    def tensors(one: Unit) -> Iterable[Num]:
        return (part.whole for part in one.parts)

    alone = plan.run.unrolled and nothing(plan.several)
    script = partial(alone_script, offload=plan.offload) if alone else None
    yield _root_entry(
        plan, "gathered parameters", PARAM, plan.root.gathered,
        _only("root", "flat", *here, "loss", "loss.backward", "reduce", "scatter", "embedding"),
        copied, tensors=tensors, script=script,
    )  # fmt: skip
    yield from _layer_entries(
        plan, "gathered parameters", PARAM, attrgetter("gathered"), _layers(plan, whole), copied,
        tensors=tensors, script=script,
    )  # fmt: skip


def buffer_entries(plan: Plan) -> Iterator[Entry]:
    """The flat buffers that units are gathered into, and the cast shards that go into them."""
    source = code("torch 2.13 F/_fsdp_collectives.py:351; kept and freed as in "
                  "F/_fsdp_param_group.py:429-489, 584")  # fmt: skip
    cast = code("torch 2.13 F/_fsdp_collectives.py:384-427: gone once they are copied in")
    top = len(plan.layers)

    def flat(spot: Spot) -> Iterable[int]:
        layer = spot.layer
        own = {"flat": (layer - 1, layer), "gather": (layer - 1, layer), "forward": (layer,),
               "loss": (top - 1,)}  # fmt: skip
        if not plan.keeps:
            own |= {"loss.backward": (top - 1,), "regather": (layer,)}
            own |= dict.fromkeys(("prefetch", "layer", "reduce", "scatter"), (layer - 1,))
        return own.get(spot.at, ())

    def fresh(spot: Spot) -> Iterable[int]:
        return {"flat": (spot.layer,), "prefetch": (spot.layer - 1,)}.get(spot.at, ())

    def root(spot: Spot) -> Num:
        first = spot.at in ("flat", "gather") and spot.layer == 0
        return int(first or spot.at in ("root.flat", "root"))

    several = plan.several
    size: Callable[[Unit], Num] = lambda one: one.cast * several  # noqa: E731
    script = copies_script if plan.offload and plan.run.unrolled else None
    yield _root_entry(plan, "shards, cast", COMM, size(plan.root), _only("root.flat"), cast,
                      stream=COPY_IN, script=script)  # fmt: skip
    yield from _layer_entries(plan, "shards, cast", COMM, size, _layers(plan, fresh), cast,
                              stream=COPY_IN, script=script)  # fmt: skip
    yield _root_entry(plan, "all-gather buffer", COMM, plan.root.gathered * several, root, source,
                      stream=COPY_IN)  # fmt: skip
    yield from _layer_entries(
        plan, "all-gather buffer", COMM, lambda one: one.gathered * several, _layers(plan, flat),
        source, stream=COPY_IN,
    )  # fmt: skip


def reduced_entries(plan: Plan) -> Iterator[Entry]:
    """Whole gradients on their way into reduce-scatter, one unit at a time.

    The last gradient is named until its output is made (F/_fsdp_collectives.py foreach_reduce:
    a loop's variable), which one rank alone does not loop for.
    """
    source = code("torch 2.13 F/_fsdp_param_group.py:647-658: freed when the next unit reduces")
    made = code("torch 2.13 F/_fsdp_collectives.py:570-606 foreach_reduce")
    top = len(plan.layers)

    def inputs(spot: Spot) -> Iterable[int]:
        own = dict.fromkeys(("regather", "prefetch", "layer"), spot.layer + 1)
        own |= {"reduce": spot.layer, "scatter": spot.layer, "embedding": 0}
        return (own.get(spot.at, top),)

    def at(place: str) -> Copies:
        return _layers(plan, lambda spot: (spot.layer,) if spot.at == place else ())

    yield from _layer_entries(plan, "reduce-scatter input", COMM, attrgetter("reduce_in"),
                              _layers(plan, inputs), source)  # fmt: skip
    yield _root_entry(plan, "reduce-scatter input", COMM, plan.root.reduce_in,
                      _only("reduce.root", "scatter.root"), source)  # fmt: skip
    last: Callable[[Unit], Num] = lambda one: one.last_grad * plan.several  # noqa: E731
    yield from _layer_entries(plan, "last gradient", COMM, last, at("scatter"), made)
    yield _root_entry(plan, "last gradient", COMM, last(plan.root), _only("scatter.root"), made)
    rest = plan.root.grads
    if plan.run.unrolled:  # else the scripts of layers and head have made them
        rest = rest - plan.head
    else:
        yield from _layer_entries(plan, "whole gradients", GRAD, attrgetter("grads"), at("reduce"),
                                  made)  # fmt: skip
        yield _root_entry(
            plan, "whole gradients of the head", GRAD, plan.head,
            _only("regather", "prefetch", "layer", "reduce", "scatter", "embedding"),
            code("torch 2.13 F/_fsdp_state.py:411-415: the root reduces when backward is over"),
        )  # fmt: skip
    yield _root_entry(plan, "whole gradients", GRAD, rest, _only("reduce.root"), made)


def output_entries(plan: Plan) -> Iterator[Entry]:
    """What reduce-scatter makes, and its cast to the dtype of the shards.

    In a first micro-batch one of them is the sharded gradient; in later ones both are added to
    it, and under offload they are copied to the host. Where replicas all-reduce an output it
    stays until backward is over.
    """
    made = code("torch 2.13 F/_fsdp_collectives.py:611-616, 664-672, F/_fsdp_param_group.py:753")
    cast = code("torch 2.13 F/_fsdp_collectives.py:696-709")

    def fresh(spot: Spot) -> bool:
        return spot.beat.later or plan.offload

    def outputs(spot: Spot, kind: int, turn: int | None) -> Num:
        own = 1 if fresh(spot) else holds(plan.kinds[kind][1].converted > 0)
        here = {"scatter": range(spot.layer, spot.layer + 1)}
        if plan.replicas:
            above = range(spot.layer + 1, len(plan.layers))
            here = dict.fromkeys(("regather", "prefetch", "layer", "reduce", "embedding",
                                  "reduce.root", "scatter.root"), above)  # fmt: skip
            here["scatter"] = range(spot.layer, len(plan.layers))
        return _layers(plan, lambda s: here.get(s.at, ()))(spot, kind, turn) * own

    def casts(spot: Spot) -> Iterable[int]:
        return (spot.layer,) if spot.at == "scatter" and fresh(spot) else ()

    def root(spot: Spot) -> Num:
        if spot.at != "scatter.root":
            return 0
        return 1 if fresh(spot) else holds(plan.root.converted > 0)

    yield from _layer_entries(plan, "reduce-scatter output", COMM, attrgetter("reduced"), outputs,
                              made, stream=SCATTER)  # fmt: skip
    yield from _layer_entries(plan, "reduced gradients, cast", COMM, attrgetter("converted"),
                              _layers(plan, casts), cast, stream=plan.cast_stream)  # fmt: skip
    yield _root_entry(plan, "reduce-scatter output", COMM, plan.root.reduced, root, made,
                      stream=SCATTER)  # fmt: skip
    yield _root_entry(
        plan, "reduced gradients, cast", COMM, plan.root.converted,
        lambda spot: int(spot.at == "scatter.root" and fresh(spot)), cast, stream=plan.cast_stream,
    )  # fmt: skip


def sharded_gradient_entries(plan: Plan) -> Iterator[Entry]:
    """Sharded gradients: a flat tensor for each unit, kept until zero_grad."""
    source = code("torch 2.13 F/_fsdp_collectives.py:696-709: views of the reduced output")
    top = len(plan.layers)

    def there(spot: Spot) -> Iterable[int]:
        if spot.beat.later or spot.layer < 0 and spot.beat.instant.phase != FORWARD:
            return range(top)
        ends = dict.fromkeys(("regather", "prefetch", "layer", "reduce"), spot.layer + 1)
        return range(ends.get(spot.at, spot.layer if spot.at == "scatter" else top), top)

    def stream(one: Unit) -> int:
        return SCATTER if nothing(one.converted) else plan.cast_stream

    streams = {stream(one) for _, one in plan.kinds}
    yield from _layer_entries(
        plan, "sharded gradients", GRAD, attrgetter("shard_grads"), _layers(plan, there), source,
        stream=max(streams),
    )  # fmt: skip
    yield _root_entry(
        plan, "sharded gradients", GRAD, plan.root.shard_grads,
        lambda spot: int(spot.beat.later or spot.at == "scatter.root"), source,
        stream=stream(plan.root),
    )  # fmt: skip


def between_entries(plan: Plan, done: Walks) -> Iterator[Entry]:
    """Activations while no block computes: what the loss keeps, a gradient on its way down.

    In an unrolled run scripts have them, but for the first layer's input before it runs.
    """
    size = done.layers[0].input_bytes
    source = code("torch 2.13 F/_fsdp_state.py: hooks before and after each unit")

    def entry(name: str, size: Num, holds: Callable[[Spot], bool]) -> Entry:
        live = {spot.beat.name: 1 for spot in plan.spots if holds(spot)}
        return Entry(name=name, kind=ACT, bytes=size, live=live, source=source)

    low = 0 if done.first is None else 1  # or the first layer's input takes no gradient
    yield entry("output of the embedding", size,
                lambda s: s.at in ("flat", "gather") and s.layer == 0)  # fmt: skip
    if plan.run.unrolled:
        return
    top = len(plan.layers)
    yield entry("input of the layer", size, lambda s: s.at in ("flat", "gather") and s.layer > 0)
    yield entry("gradient of the layer's input", size,
                lambda s: s.at in ("reduce", "scatter") and s.layer >= low)  # fmt: skip
    yield entry("gradient of the layer's output", size,
                lambda s: s.at in ("regather", "prefetch") and s.layer < top)  # fmt: skip
    yield entry("loss: kept for backward", done.head.saved_bytes,
                lambda s: s.at in ("root.flat", "root", "prefetch") and s.layer == top)  # fmt: skip
