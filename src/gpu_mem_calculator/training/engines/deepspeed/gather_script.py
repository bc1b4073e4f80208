"""The gathers of one micro-batch of stage 3, recorded once for all ledgers and streams with them.

Which parameters are gathered and freed at each hook depends on the model's modules, on the limits
and on what is gathered before, not on the batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from itertools import chain, groupby

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.remember import remembered
from .coordinator import GatherLimits, ModuleStack, module_trace
from .gather import FROM_HOST, GatherAllocator, Reads, WeightReader, modules_of
from .hook_points import AFTER, BEFORE, PassHooks
from .layout import ZeroLayout
from .rank import TensorAllocator

Hooks = tuple[PassHooks, ...]


class GatheredBlock(Struct, frozen=True):
    """The hooks of a block in each direction, and the elements that its operations read."""

    forward: Hooks
    backward: Hooks
    reads: Reads


class GatheredModel(Struct, frozen=True, cache_hash=True):
    """What the gathers of a micro-batch depend on.

    ranks: 1, or a number to which sizes are padded as to the number of ranks
    from_host: shards are on the host, and copied to the GPU for a gather
    layers: equal ones, and how many
    """

    stack: ModuleStack
    limits: GatherLimits
    ranks: int
    from_host: bool
    layers: tuple[tuple[GatheredBlock, int], ...]
    head: GatheredBlock


def gathered_model(
    plan: ZeroLayout, stack: ModuleStack, layers: Iterable[GatheredBlock], head: GatheredBlock
) -> GatheredModel:
    """The model of a layout, in which equal neighbours are one row. `layers`: each layer's."""
    kinds = groupby(stack.layers, key=lambda row: (row[0], row[2]))
    rows = tuple((kind[0], sum(row[1] for row in rows), kind[1]) for kind, rows in kinds)
    stack = replace(stack, layers=rows)
    from_host, ranks = plan.offload_param != "none", int(plan.ranks)
    if not (from_host or any(size % ranks for size in {*module_trace(stack).numel})):
        ranks = _smallest_divisor(ranks)  # all of those pad alike
    return GatheredModel(
        stack,
        plan.limits,
        ranks,
        from_host,
        tuple((block, len(list(equal))) for block, equal in groupby(layers)),
        head,
    )


def _smallest_divisor(ranks: int) -> int:
    """The smallest number above one that divides the ranks; one rank alone gathers nothing."""
    return next((n for n in range(2, ranks + 1) if ranks % n == 0), 1)


class GatherScript(Struct, frozen=True):
    """The tensors that are gathered in a micro-batch, and when.

    sizes: bytes of each tensor; first those that are gathered before
    shards: tensors that are shards from the host
    events: `i` allocates tensor i, `~i` frees it
    ends: numbers of events up to the end of what comes before the layers, of each hook, of the
        embedding's, and of all
    left: tensors that are gathered afterwards, by parameter
    """

    sizes: array[int]
    shards: frozenset[int]
    events: array[int]
    ends: array[int]
    left: dict[int, int]


class _Recorder:
    """An allocator that records events."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.events: list[int] = []
        self.shards: list[int] = []

    def make_on(self, queue: int, size: int, name: Hashable = "") -> int:
        """Allocate a tensor."""
        tensor = len(self.sizes)
        self.sizes.append(size)
        self.events.append(tensor)
        if name == FROM_HOST:
            self.shards.append(tensor)
        return tensor

    def free(self, tensors: Iterable[int]) -> None:
        """Free tensors."""
        self.events += [~tensor for tensor in tensors]

    def empty_cache(self) -> None:
        """A recorder caches nothing."""

    def size(self, tensor: int) -> int:
        """Bytes of a tensor."""
        return self.sizes[tensor]


def _allocator(model: GatheredModel, to: TensorAllocator) -> GatherAllocator:
    """What gathers the model's parameters."""
    trace, ranks, from_host = module_trace(model.stack), model.ranks, model.from_host
    return GatherAllocator(trace, model.limits, to, ranks=ranks, lane=0, from_host=from_host)


@remembered(16, always=True)
def small_parameters(model: GatheredModel) -> dict[int, int]:
    """Bytes of each parameter that stays gathered, which the step's end gathers alone
    (zero/stage3.py:2878).
    """
    state = _allocator(model, _Recorder())
    return {p: state.padded(p) for p, stays in enumerate(state.persistent) if stays}


@remembered(16, always=True)
def gather_script(model: GatheredModel, given: tuple[int, ...], *, known: bool) -> GatherScript:
    """Record a micro-batch that begins with the parameters `given` gathered; `known`: the order of
    modules is. A checkpointed layer that runs forward again stops before its last release.
    """
    to = _Recorder()
    state = _allocator(model, to)
    trace, state.traced = state.trace, known
    state.gather_alone(given)
    to.events.clear()
    reader = WeightReader(trace, state)
    ends: list[int] = []
    backwards = False

    def run(passes: Hooks, modules: tuple[list[int], list[int]]) -> None:
        nonlocal backwards
        for kind, number, forward in chain.from_iterable(passes):
            places = modules[0 if forward else 1]
            if kind == BEFORE:
                backwards = backwards or not forward
                reader.until(places[number], fetched=True)
            elif kind == AFTER:
                stops = forward and backwards and number == len(places) - 1
                if not stops and places[number] not in places[number + 1 :]:
                    reader.until(places[number], fetched=False)
            else:
                continue
            ends.append(len(to.events))

    reader.advance(trace.begun)
    ends.append(len(to.events))
    blocks = [block for block, count in model.layers for _ in range(count)]
    places = [modules_of(b.reads, i, trace) for b, i in zip(blocks, trace.layers, strict=True)]
    for block, modules in zip(blocks, places, strict=True):
        run(block.forward, modules)
    head = modules_of(model.head.reads, trace.after, trace)
    run(model.head.forward, head)
    run(model.head.backward, head)
    for block, modules in zip(reversed(blocks), reversed(places), strict=True):
        run(block.backward, modules)
    reader.advance(len(trace.events))
    ends.append(len(to.events))
    state.sweep(persistent=not known)
    ends.append(len(to.events))
    left = {p: state.tensors[p] for p in sorted(state.tensors)}
    sizes, events, hooks = (array("q", one) for one in (to.sizes, to.events, ends))
    return GatherScript(sizes, frozenset(to.shards), events, hooks, left)
