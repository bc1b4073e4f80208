"""The gathers of one micro-batch of stage 3, recorded once for all ledgers and streams with them.

Which parameters are gathered and freed at each hook depends on the model's modules, on the limits
and on what is gathered before, not on the batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from itertools import chain, groupby
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.remember import remembered
from ...step.cycles import continued, shifted
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


class EventList:
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
    state = _allocator(model, EventList())
    return {p: state.padded[p] for p, stays in enumerate(state.persistent) if stays}


class _Boundary(NamedTuple):
    """Where a micro-batch is between two layers; `shape`: as seen from the one that follows."""

    shape: Hashable
    param: int
    step: int
    taken: int  # off the queue
    event: int
    tensors: int
    events: int
    ends: int


class _Recording:
    """A micro-batch that begins with the parameters `given` gathered.

    A layer that finds the state, relative to itself, as the one before it does the same, while the
    queue ahead and the distances of reuse are alike: then what was recorded is written again.
    """

    def __init__(self, model: GatheredModel, given: tuple[int, ...], *, known: bool) -> None:
        self.model, self.known, self.to = model, known, EventList()
        self.state = _allocator(model, self.to)
        self.trace, self.state.traced = self.state.trace, known
        self.state.gather_alone(given)
        self.to.events.clear()
        self.reader = WeightReader(self.trace, self.state)
        self.ends: list[int] = []
        self.backwards = False
        uses = enumerate(self.trace.uses)
        self.small = [p for p, steps in uses if steps and self.state.persistent[p]]
        self.blocks = [block for block, count in model.layers for _ in range(count)]

    def script(self) -> GatherScript:
        """Record all of it."""
        trace, head, to = self.trace, self.model.head, self.to
        self.reader.advance(trace.begun)
        self.ends.append(len(to.events))
        numbers = range(len(self.blocks))
        self._layers(numbers, forward=True)
        places = modules_of(head.reads, trace.after, trace)
        self._run(head.forward, places)
        self._run(head.backward, places)
        self._layers(numbers[::-1], forward=False)
        self.reader.advance(len(trace.events))
        self.ends.append(len(to.events))
        self.state.sweep(persistent=not self.known)
        self.ends.append(len(to.events))
        left = {p: self.state.tensors[p] for p in sorted(self.state.tensors)}
        sizes, events, ends = (array("q", one) for one in (to.sizes, to.events, self.ends))
        return GatherScript(sizes, frozenset(to.shards), events, ends, left)

    def _run(self, passes: Hooks, modules: tuple[list[int], list[int]]) -> None:
        """A block's hooks. A checkpointed layer that runs forward again stops before its last
        release.
        """
        for kind, number, forward in chain.from_iterable(passes):
            places = modules[0 if forward else 1]
            if kind == BEFORE:
                self.backwards = self.backwards or not forward
                self.reader.until(places[number], fetched=True)
            elif kind == AFTER:
                stops = forward and self.backwards and number == len(places) - 1
                if not stops and places[number] not in places[number + 1 :]:
                    self.reader.until(places[number], fetched=False)
            else:
                continue
            self.ends.append(len(self.to.events))

    def _layers(self, numbers: range, *, forward: bool) -> None:
        """The layers of a pass in their order."""
        # whether small parameters stay gathered, or all are freed by those who have gathered them
        settled = all(self.state.available[p] == self.known for p in self.small)
        before: _Boundary | None = None
        at = 0
        while at < len(numbers):
            number = numbers[at]
            now = self._boundary(number, forward=forward) if settled else None
            if before and now and before.shape == now.shape:
                count = self._again(before, now, numbers[at - 1 :])
                if count:
                    at, before = at + count, None
                    continue
            before = now
            self.state.checks.clear()
            block = self.blocks[number]
            modules = modules_of(block.reads, self.trace.layers[number], self.trace)
            self._run(block.forward if forward else block.backward, modules)
            at += 1

    def _kind(self, number: int) -> tuple[int, int]:
        """What a layer and its hooks are."""
        return self.trace.kinds[number], id(self.blocks[number])

    def _near(self, param: int, first: int) -> tuple[bool, int]:
        """A layer's parameter, seen from the layer that begins with `first`; others stay."""
        inside = self.trace.first_params[0] <= param < self.trace.first_params[-1]
        return inside, param - first if inside else param

    def _boundary(self, number: int, *, forward: bool) -> _Boundary:
        """The state before a layer."""
        trace, state, reader = self.trace, self.state, self.reader
        first, step, made = trace.first_params[number], state.step, len(self.to.sizes)
        groups: dict[int, int] = {}
        waiting = [
            (self._near(p, first), groups.setdefault(id(handle), len(groups)), handle[0])
            for p, handle in state.handles.items()
        ]
        flat = [
            (made - state.flats[one], [self._near(p, first) for p in state.members.get(one, ())])
            for one in groups
            if one in state.flats
        ]
        own = [p for m in trace.layers[number] for p in trace.modules[m]]
        shape = (
            self._kind(number),
            state.traced and state.count,  # only prefetches read it
            sorted((near := self._near(p, first), near[0] * made - t) for p, t in self._large()),
            (waiting, flat),
            [(self._near(p, first), [made - t for t in row]) for p, row in state.held_back.items()],
            [(max(state.recent[p] - step, -1), state.available[p]) for p in own],
            reader.at - trace.first_events[0 if forward else 1][number],
            [m in reader.open for m in trace.layers[number] if trace.modules[m]],
        )
        taken = len(trace.order) - len(state.queue)
        lengths = (made, len(self.to.events), len(self.ends))
        return _Boundary(shape, first, step, taken, reader.at, *lengths)

    def _large(self) -> list[tuple[int, int]]:
        """The gathered parameters that do not stay, and their tensors."""
        small = self.state.persistent
        return [(p, tensor) for p, tensor in self.state.tensors.items() if not small[p]]

    def _again(self, before: _Boundary, now: _Boundary, numbers: range) -> int:
        """Write the layer between two boundaries again for those that follow and do the same; their
        number. `numbers`: from that layer on.
        """
        step = _Boundary("", *(b - a for a, b in zip(before[1:], now[1:], strict=True)))
        count = 0
        while count + 1 < len(numbers) and self._alike(before, step, numbers, count + 1):
            count += 1
        if count:
            self._repeat(before, step, numbers[: count + 1])
        return count

    def _alike(self, begin: _Boundary, step: _Boundary, numbers: range, later: int) -> bool:
        """Whether the layer that is `later` behind the recorded one finds the same in the queue,
        and the same parameters are used soon.
        """
        if self._kind(numbers[later]) != self._kind(numbers[0]):
            return False
        fetches, params = later * step.step, later * step.param
        taken = begin.taken + later * step.taken
        own = self.trace.order[begin.taken : begin.taken + step.taken]
        moved = [(self._moved(p, params), at + fetches) for p, at in own]
        numel, used_soon = self.trace.numel, self.state.used_soon
        return (
            moved == self.trace.order[taken : taken + step.taken]
            and all(numel[p] == numel[q] for (p, _), (q, _) in zip(own, moved, strict=True))
            and all(
                soon == used_soon(self._moved(p, params), fetch + fetches)
                for p, fetch, soon in self.state.checks
            )
        )

    def _moved(self, param: int, params: int) -> int:
        """A layer's parameter, moved on by so many; others stay."""
        first, *_, end = self.trace.first_params
        return param + params if first <= param < end else param

    def _repeat(self, begin: _Boundary, step: _Boundary, numbers: range) -> None:
        """Write the layer that was recorded since `begin` for all the others of `numbers`, too."""
        to, state, trace, count = self.to, self.state, self.trace, len(numbers) - 1
        events, ends = to.events[begin.events :], self.ends[begin.ends :]
        shards = [tensor for tensor in to.shards if tensor >= begin.tensors]
        window = array("q", events)
        following = shifted(window, step.tensors)
        to.events += [*following, *continued(window, following, count - 1)]
        for number in range(1, count + 1):
            to.shards += [tensor + number * step.tensors for tensor in shards]
            self.ends += [end + number * step.events for end in ends]
        to.sizes += to.sizes[begin.tensors :] * count
        params, tensors = count * step.param, count * step.tensors

        def moved(param: int) -> int:
            return self._moved(param, params)

        large = [(p, tensor, state.available[p]) for p, tensor in self._large()]
        for p, _, _ in large:
            del state.tensors[p]
            state.available[p] = False
        for p, tensor, available in large:
            state.tensors[moved(p)] = tensor + tensors * self._near(p, 0)[0]
            state.available[moved(p)] = available
        state.handles = {moved(p): handle for p, handle in state.handles.items()}
        state.flats = {one: tensor + tensors for one, tensor in state.flats.items()}
        state.members = {one: [moved(p) for p in row] for one, row in state.members.items()}
        state.held_back = {
            moved(p): [tensor + tensors for tensor in row] for p, row in state.held_back.items()
        }
        for _ in range(count * step.taken):
            p, at = state.queue.popleft()
            state.recent[p] = max(state.recent[p], at)
        state.step += count * step.step
        self.reader.at += count * step.event
        opened = [module in self.reader.open for module in trace.layers[numbers[0]]]
        for number in numbers[1:]:
            for module, is_open in zip(trace.layers[number], opened, strict=True):
                (self.reader.open.add if is_open else self.reader.open.discard)(module)


@remembered(16, always=True)
def gather_script(model: GatheredModel, given: tuple[int, ...], *, known: bool) -> GatherScript:
    """What is gathered in a micro-batch that begins with the parameters `given` gathered; `known`:
    the order of modules has been recorded.
    """
    return _Recording(model, given, known=known).script()
