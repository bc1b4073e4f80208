"""Stage 3's parameters, gathered and freed tensor by tensor while blocks run.

deepspeed 0.19.8 zero/partitioned_param_coordinator.py and zero/partition_parameters.py:1326-1480.
The first forward and backward are recorded: each module gathers its own parameters and frees them.
Afterwards the order is known, and the coordinator prefetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....pytorch.autograd.events import BlockEvents
from .coordinator import GatherLimits, ModuleTrace, ParameterCoordinator
from .rank import TensorAllocator

FROM_HOST = "from host"  # the name of a shard that is copied from the host for a gather
GATHER = 2  # the CUDA stream of gathers where they overlap with work


class GatherAllocator(ParameterCoordinator):
    """A coordinator that allocates and frees the parameters it counts.

    to: where tensors are allocated
    lane: the CUDA stream of gathers
    from_host: shards are on the host, and copied to the GPU for a gather
    """

    def __init__(
        self,
        trace: ModuleTrace,
        limits: GatherLimits,
        to: TensorAllocator,
        *,
        ranks: int,
        lane: int,
        from_host: bool,
    ) -> None:
        super().__init__(trace, limits)
        self.to, self.ranks, self.lane = to, ranks, lane
        self.from_host = from_host
        self.tensors: dict[int, int] = {}  # gathered parameters
        self.flats: dict[int, int] = {}  # flat buffers, by the handle's identity
        self.members: dict[int, list[int]] = {}
        self.held_back: dict[int, list[int]] = {}  # released, but alive in a recomputed forward
        self.traced = False
        self.available = [False] * len(trace.numel)
        # Bytes of each parameter, and padded to equal shards; 0 where one rank's shard on the GPU
        # is the whole parameter (partition_parameters.py:1560).
        self.whole = trace.bytes if ranks > 1 or from_host else [0] * len(trace.bytes)
        widths = zip(self.whole, trace.numel, strict=True)
        self.padded = [-(-size // ranks) * ranks * (whole // size) for whole, size in widths]

    def gather(self, params: list[int]) -> None:
        """Allocate the tensor of one parameter, or a flat buffer for several."""
        super().gather(params)
        if len(params) == 1:
            self.tensors[params[0]] = self.to.make_on(self.lane, self.padded[params[0]])
        else:
            handle, size = id(self.handles[params[0]]), sum([self.padded[p] for p in params])
            self.flats[handle] = self.to.make_on(self.lane, size)
            self.members[handle] = sorted(params)
        if self.from_host:
            shards = [self.padded[p] // self.ranks for p in params]
            self.to.free([self.to.make_on(self.lane, size, FROM_HOST) for size in shards])

    def wait(self, param: int) -> None:
        """Copy all parameters out of the flat buffer at its first wait, and free it at the last."""
        handle = self.handles.pop(param)
        handle[0] -= 1
        self.available[param] = True
        for p in self.members.pop(id(handle), ()):
            self.tensors[p] = self.to.make_on(self.lane, self.whole[p])
        if not handle[0] and id(handle) in self.flats:
            self.to.free((self.flats.pop(id(handle)),))

    def fetch(self, params: tuple[int, ...]) -> None:
        """Gather a module's parameters; prefetch only after the order of modules was recorded."""
        if self.traced:
            super().fetch(params)
        else:
            self.need(params)

    def release(self, params: tuple[int, ...], *, holds: bool = False) -> None:
        """Free what the coordinator releases; all of it while the order is recorded."""
        if self.traced:
            super().release(params, holds=holds)
        else:
            for p in params:
                self.available[p] = False
        for p in params:
            if not holds and p in self.held_back:
                self.to.free(self.held_back.pop(p))
            if not self.available[p]:
                self.free_parameter(p, holds=holds)

    def free_parameter(self, param: int, *, holds: bool = False) -> None:
        """Free a gathered parameter; `holds`: when its next release comes."""
        if param in self.tensors:
            tensor = self.tensors.pop(param)
            if holds:
                self.held_back.setdefault(param, []).append(tensor)
            else:
                self.to.free((tensor,))

    def sweep(self, *, persistent: bool) -> None:
        """Free every gathered parameter; those below the threshold only if `persistent`."""
        for p in list(self.handles):
            self.wait(p)
        for p, gathered in enumerate(self.available):
            if gathered and (persistent or not self.persistent[p]):
                self.available[p] = False
                self.free_parameter(p)

    def gather_alone(self, params: Iterable[int]) -> None:
        """Gather parameters one by one, on torch's own CUDA stream."""
        for p in params:
            self.tensors[p] = self.to.make_on(0, self.padded[p])
            self.available[p] = True


class WeightReader:
    """Runs the fetches and releases of a trace as operations read weights."""

    def __init__(self, trace: ModuleTrace, state: GatherAllocator) -> None:
        self.trace, self.state = trace, state
        self.at = 0
        self.open: set[int] = set()

    def advance(self, end: int) -> None:
        """Run every fetch and release before the event with index `end`."""
        trace, state, opened = self.trace, self.state, self.open
        for index in range(self.at, end):
            module, fetched = trace.events[index]
            if fetched:
                opened.add(module)
                state.fetch(trace.modules[module])
            else:
                opened.discard(module)
                state.release(trace.modules[module], holds=index in trace.holding_releases)
        self.at = max(self.at, end)

    def until(self, module: int, *, fetched: bool) -> None:
        """Run all events up to a module's next fetch or release."""
        if fetched == (module in self.open) and fetched:
            return
        try:
            self.advance(self.trace.events.index((module, fetched), self.at) + 1)
        except ValueError:
            return  # it has passed


Reads = tuple[tuple[int, ...], tuple[int, ...]]  # elements of weights, forward and backward


def weight_reads(events: BlockEvents) -> Reads:
    """Elements of the weights that each operation reads, in the order of each pass."""
    calls, back_calls = events.calls, events.back_calls
    return tuple(int(n) for _, _, n in calls), tuple(int(n) for _, _, n in back_calls)


def modules_of(reads: Reads, ids: Sequence[int], trace: ModuleTrace) -> tuple[list[int], list[int]]:
    """The module of each operation that reads weights, in the order of forward and of backward.

    ids: the modules of the block, in the order of forward
    Operations and modules are matched by their elements; where those do not agree, in proportion.
    """
    with_weights = [m for m in ids if trace.modules[m]]
    sizes = [sum(trace.numel[p] for p in trace.modules[m]) for m in with_weights]
    calls, back_calls = reads
    forward = _match(calls, with_weights, sizes)
    back: list[int] = []
    at = len(forward) - 1
    for elements in back_calls:
        while at > 0 and calls[at] != elements:
            at -= 1
        back.append(forward[max(at, 0)] if forward else -1)
        at -= 1
    return forward, back


def _match(calls: Sequence[int], modules: list[int], sizes: list[int]) -> list[int]:
    matches: list[int] = []
    at = left = 0
    for elements in calls:
        if not left and at < len(modules):
            left, at = sizes[at], at + 1
        matches.append(modules[at - 1] if modules else -1)
        left -= elements
        if left < 0:
            break
    if left or len(matches) < len(calls) or at < len(modules):
        return [modules[i * len(modules) // len(calls)] for i in range(len(calls))]
    return matches
