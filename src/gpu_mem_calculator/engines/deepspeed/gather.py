"""Stage 3's parameters, gathered and let go tensor by tensor, as blocks play.

deepspeed 0.19.8 zero/partitioned_param_coordinator.py and zero/partition_parameters.py:1326-1480.
The first forward and backward are recorded: each module gathers its own parameters and lets them
go. Afterwards the order is known, and the coordinator fetches ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...autograd.events import BlockEvents
from .coordinator import GatherLimits, ModuleTrace, ParameterCoordinator
from .rank import TensorAllocator

FROM_HOST = "from host"  # what a tensor is for that a gather is made of
GATHER = 2  # the CUDA stream of gathers where they overlap with work


class GatherAllocator(ParameterCoordinator):
    """A coordinator that makes and frees what it counts."""

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
        self.kept: dict[int, list[int]] = {}  # let go, but held by a second forward
        self.traced = False
        self.available = [False] * len(trace.numel)

    def whole(self, param: int) -> int:
        """Bytes of a gathered parameter; one rank's shard is that already, where it is on the GPU
        (partition_parameters.py:1560).
        """
        return self.trace.bytes[param] if self.ranks > 1 or self.from_host else 0

    def padded(self, param: int) -> int:
        """Bytes of a parameter, every rank's share alike."""
        if not self.whole(param):
            return 0
        size, width = self.trace.numel[param], self.trace.bytes[param] // self.trace.numel[param]
        return -(-size // self.ranks) * self.ranks * width

    def gather(self, params: list[int]) -> None:
        """One parameter arrives in its own storage, several in a flat buffer first."""
        super().gather(params)
        made = [self.to.make_on(self.lane, self.padded(p)) for p in params] if (
            len(params) == 1) else []  # fmt: skip
        if made:
            self.tensors[params[0]] = made[0]
        else:
            handle = id(self.handles[params[0]])
            self.flats[handle] = self.to.make_on(self.lane, sum(map(self.padded, params)))
            self.members[handle] = sorted(params)
        if self.from_host:
            shards = [self.to.make_on(self.lane, self.padded(p) // self.ranks, FROM_HOST)
                      for p in params]  # fmt: skip
            self.to.free(shards)

    def wait(self, param: int) -> None:
        """The first wait copies every parameter out of the flat buffer, the last one frees it."""
        handle = self.handles[param]
        members = self.members.pop(id(handle), ())
        for p in members:
            self.tensors[p] = self.to.make_on(self.lane, self.whole(p))
        super().wait(param)
        if not handle[0] and id(handle) in self.flats:
            self.to.free((self.flats.pop(id(handle)),))

    def fetch(self, params: tuple[int, ...]) -> None:
        """While the order is recorded a module gathers its own parameters, and no more."""
        if self.traced:
            super().fetch(params)
        else:
            self.need(params)

    def release(self, params: tuple[int, ...], *, holds: bool = False) -> None:
        """And lets all of them go."""
        if self.traced:
            super().release(params, holds=holds)
        else:
            for p in params:
                self.available[p] = False
        for p in params:
            if not holds:
                self.to.free(self.kept.pop(p, ()))
            if not self.available[p]:
                self.let_go(p, holds=holds)

    def let_go(self, param: int, *, holds: bool = False) -> None:
        """A parameter is no longer gathered."""
        if param in self.tensors:
            tensor = self.tensors.pop(param)
            if holds:
                self.kept.setdefault(param, []).append(tensor)
            else:
                self.to.free((tensor,))

    def sweep(self, *, persistent: bool) -> None:
        """Everything goes, but for small parameters where they stay."""
        for p in list(self.handles):
            self.wait(p)
        for p, there in enumerate(self.available):
            if there and not (self.persistent[p] and not persistent):
                self.available[p] = False
                self.let_go(p)

    def gather_small(self) -> None:
        """The step's end: small parameters are gathered for good (zero/stage3.py:2878)."""
        small = [p for p, stays in enumerate(self.persistent) if stays and not self.available[p]]
        for p in small:
            self.tensors[p] = self.to.make_on(0, self.padded(p))
            self.available[p] = True


class WeightReader:
    """Goes through a trace as operations read weights."""

    def __init__(self, trace: ModuleTrace, state: GatherAllocator) -> None:
        self.trace, self.state = trace, state
        self.at = 0
        self.open: set[int] = set()

    def advance(self, end: int) -> None:
        """Every fetch and release up to there."""
        trace = self.trace
        for index in range(self.at, end):
            module, fetched = trace.events[index]
            params = trace.modules[module]
            if fetched:
                self.open.add(module)
                self.state.fetch(params)
            else:
                self.open.discard(module)
                self.state.release(params, holds=index in trace.held)
        self.at = max(self.at, end)

    def until(self, module: int, *, fetched: bool) -> None:
        """Go on to a module's next fetch or release."""
        if fetched == (module in self.open) and fetched:
            return
        events = self.trace.events
        for index in range(self.at, len(events)):
            if events[index] == (module, fetched):
                self.advance(index + 1)
                return


Reads = tuple[tuple[int, ...], tuple[int, ...]]


def reads(script: BlockEvents) -> Reads:
    """Elements of the weights that each operation reads, in forward's and in backward's order."""
    calls, back_calls = script.calls, script.back_calls
    return tuple(int(n) for _, _, n in calls), tuple(int(n) for _, _, n in back_calls)


def modules_of(found: Reads, ids: Sequence[int], trace: ModuleTrace) -> tuple[list[int], list[int]]:
    """The module of each operation that reads weights, in forward's and in backward's order.

    Operations and modules are matched by their elements; where those do not agree, in proportion.
    """
    with_weights = [m for m in ids if trace.modules[m]]
    sizes = [sum(trace.numel[p] for p in trace.modules[m]) for m in with_weights]
    calls, back_calls = found
    forward = _matched(calls, with_weights, sizes)
    back: list[int] = []
    at = len(forward) - 1
    for elements in back_calls:
        while at > 0 and calls[at] != elements:
            at -= 1
        back.append(forward[max(at, 0)] if forward else -1)
        at -= 1
    return forward, back


def _matched(calls: Sequence[int], modules: list[int], sizes: list[int]) -> list[int]:
    found: list[int] = []
    at = left = 0
    for elements in calls:
        if not left and at < len(modules):
            left, at = sizes[at], at + 1
        found.append(modules[at - 1] if modules else -1)
        left -= elements
        if left < 0:
            break
    if left or len(found) < len(calls) or at < len(modules):
        return [modules[i * len(modules) // len(calls)] for i in range(len(calls))]
    return found
