"""Which parameters stage 3 gathers, and when it frees them.

A mirror of deepspeed 0.19.8 zero/partitioned_param_coordinator.py from the second step on, when
the order of modules is known: `_fetch_sub_module_impl` (line 355), `release_sub_module` (494)
and `__params_to_release` (634). It agrees with measured runs to the byte at the end of forward.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate

from msgspec import Struct

from ....ledger.remember import remembered
from .modules import Module


class GatherLimits(Struct, frozen=True):
    """The options that decide what stays gathered, in elements."""

    prefetch: int = 50_000_000  # stage3_prefetch_bucket_size
    live: int = 1_000_000_000  # stage3_max_live_parameters
    reuse: int = 1_000_000_000  # stage3_max_reuse_distance
    persist: int = 100_000  # stage3_param_persistence_threshold


# A layer's forward is not run again in backward; it is; it is, and keeps weights alive.
NO_RECOMPUTE, RECOMPUTE, RECOMPUTE_HOLDS = 0, 1, 2


class ModuleStack(Struct, frozen=True):
    """The modules of a model: before the layers, of the layers, after them.

    HELD: a checkpoint with hooks keeps what its recomputed forward saves as tensors of its own
    (torch 2.11 utils/checkpoint.py _recomputation_hook: `x.detach()`), weights among them, so their
    memory stays until backward has read them, although the coordinator has released them.
    """

    before: tuple[Module, ...]
    # of equal layers: the groups of modules of one, how many, whether run again
    layers: tuple[tuple[tuple[tuple[Module, ...], ...], int, int], ...]
    after: tuple[Module, ...]
    tied: bool = False  # the head's first parameter is the embedding's
    width: int = 1  # bytes of an element
    wide: frozenset[int] = frozenset()  # sizes of parameters that have another width
    other: int = 1
    root: bool = False  # the model itself reads the head's weight: gathered while it runs
    idle: Module = ()  # parameters of modules that are not called, a vision tower's


class ModuleTrace:
    """The parameters of a model by number, and the fetches and releases of its modules in order."""

    def __init__(self, stack: ModuleStack) -> None:
        self.numel: list[int] = []
        self.bytes: list[int] = []
        self.widths = (stack.width, stack.wide, stack.other)
        self.modules: list[tuple[int, ...]] = []
        self.events: list[tuple[int, bool]] = []  # module, whether fetched (else released)
        self.holding_releases: set[int] = set()  # after them a recomputed forward keeps the weights
        self.layers: list[list[int]] = []  # modules of each layer, in the order of forward
        self.kinds: list[int] = []  # of each layer, its row of the stack
        # of each layer: its first parameter, and the first event of its forward and its backward
        self.first_params: list[int] = []
        self.first_events: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.after: list[int] = []  # modules after the layers
        self.begun = self.ended = 0  # events before the first layer, and of all of forward
        self.order: list[tuple[int, int]] = []  # each parameter that is fetched, and its fetch
        self.passed = [0]  # elements that are fetched before each fetch
        self._build(stack)
        self.uses: list[list[int]] = [[] for _ in self.numel]  # fetches of each parameter
        self._count()

    def _add(self, module: Module, shared: tuple[int, ...] = ()) -> int:
        """A module's number; its first parameters are `shared` ones."""
        width, wide, other = self.widths
        own = module[len(shared) :]
        ids = (*shared, *range(len(self.numel), len(self.numel) + len(own)))
        self.numel += own
        self.bytes += [size * (other if size in wide else width) for size in own]
        self.modules.append(ids[: len(module)])
        return len(self.modules) - 1

    def _build(self, stack: ModuleStack) -> None:
        before = [self._add(m) for m in stack.before]
        layers = []
        for kind, (modules, count, again) in enumerate(stack.layers):
            for _ in range(count):
                self.kinds.append(kind)
                self.first_params.append(len(self.numel))
                layers.append(([[self._add(m) for m in group] for group in modules], again))
        self.first_params.append(len(self.numel))
        after = [self._add(m) for m in stack.after[:-1]]
        after.append(self._add(stack.after[-1], (0,) if stack.tied else ()))
        self.layers = [[m for group in groups for m in group] for groups, _ in layers]
        self.after = after
        self._add(stack.idle)
        if stack.root:
            self.events.append((before[0], True))
        self._forward(before[stack.root :])
        self.begun = len(self.events)
        for number, ids in enumerate(self.layers):
            self.first_events[0][number] = len(self.events)
            self._forward(ids)
        self._forward(after)
        self.ended = len(self.events)
        head = after[-1]
        self.events += [(before[0], True), (head, True)]
        self.events += [(before[1], True)] if stack.root else [(head, False), (before[1], True)]
        for ident in after[-2::-1]:
            self.events += [(ident, True), (ident, False)]
        for number in range(len(layers) - 1, -1, -1):
            self.first_events[1][number] = len(self.events)
            self._backward(*layers[number])
        self.events += [(ident, True) for ident in reversed(before[2:]) if self.modules[ident]]

    def _count(self) -> None:
        in_order = [sorted(params) for params in self.modules]
        sizes = [sum([self.numel[param] for param in params]) for params in self.modules]
        fetches = [module for module, fetched in self.events if fetched]
        for number, module in enumerate(fetches):
            for param in in_order[module]:
                self.order.append((param, number))
                self.uses[param].append(number)
        self.passed = [*accumulate([sizes[module] for module in fetches], initial=0)]

    def _forward(self, ids: list[int], *, holds: bool = False) -> None:
        for ident in ids:
            self.events.append((ident, True))
            if self.modules[ident]:
                if holds:
                    self.holding_releases.add(len(self.events))
                self.events.append((ident, False))

    def _backward(self, groups: list[list[int]], again: int) -> None:
        """The layer, then its groups from the last to the first, in each the outer module first.

        A checkpointed layer runs forward again when the last module's backward needs its
        input, and stops before that module's end.
        """
        order = [m for group in (groups[:1] + groups[:0:-1]) for m in (group[0], *group[:0:-1])]
        ids = [m for group in groups for m in group]
        for ident in order:
            self.events.append((ident, True))
            if ident == ids[-1] and again:
                self._forward(ids[:-1], holds=again == RECOMPUTE_HOLDS)
                self.events.append((ident, True))
            if self.modules[ident]:
                self.events.append((ident, False))


@remembered(16, always=True)
def module_trace(stack: ModuleStack) -> ModuleTrace:
    """The trace of a model."""
    return ModuleTrace(stack)


class ParameterCoordinator:
    """Fetches and releases parameters as DeepSpeed's coordinator does."""

    def __init__(self, trace: ModuleTrace, limits: GatherLimits) -> None:
        self.trace = trace
        self.limits = limits
        self.persistent = [n <= limits.persist for n in trace.numel]
        self.available = list(self.persistent)
        self.checks: list[tuple[int, int, bool]] = []  # parameter, fetch, whether it is used soon
        self.restart()

    def restart(self) -> None:
        """A forward begins: refill the queue; gathered parameters stay."""
        self.handles: dict[int, list[int]] = {}  # parameters being gathered
        self.recent = [-1] * len(self.persistent)
        self.step = 0
        self.count = 0  # gathered elements, as DeepSpeed counts them
        self.queue = deque(self.trace.order)

    def gather(self, params: list[int]) -> None:
        """Begin to gather parameters."""
        handle = [len(params)]
        self.count += sum(self.trace.numel[p] for p in params)
        for p in params:
            self.handles[p] = handle

    def wait(self, param: int) -> None:
        """Wait until a parameter is gathered."""
        self.handles.pop(param)[0] -= 1
        self.available[param] = True

    def need(self, params: tuple[int, ...]) -> None:
        """Gather what is missing of a module's parameters, and wait for all of them."""
        available, handles = self.available, self.handles
        missing = [p for p in params if not available[p] and p not in handles]
        if missing:
            self.gather(missing)
        for p in params:
            if p in handles:
                self.wait(p)

    def fetch(self, params: tuple[int, ...]) -> None:
        """Gather what the module needs, then prefetch."""
        if params:
            self.need(params)
        recent, step = self.recent, self.step
        for _ in [p for p in params if recent[p] < step]:
            p, at = self.queue.popleft()
            recent[p] = at
        if self.count < self.limits.live:
            self.prefetch()
        self.step = step + 1

    def prefetch(self) -> None:
        """Take parameters off the queue until the bucket or the limit of live ones is full."""
        space = min(self.limits.live - self.count, self.limits.prefetch)
        wanted: dict[int, None] = {}
        size = 0
        queue, recent, available, numel = self.queue, self.recent, self.available, self.trace.numel
        while queue and size < space:
            p, at = queue.popleft()
            if at > recent[p]:
                recent[p] = at
            if not available[p] and p not in self.handles and p not in wanted:
                wanted[p] = None
                size += numel[p]
        if wanted:
            self.gather(list(wanted))

    def release(self, params: tuple[int, ...], *, holds: bool = False) -> None:
        """Release what is not persistent, not prefetched, and not used again soon.

        `holds`: a recomputed forward keeps it alive until the next release.
        """
        step = self.step
        for p in params:
            if self.persistent[p] or self.recent[p] > step or not self.available[p]:
                continue
            soon = self.used_soon(p, step)
            self.checks.append((p, step, soon))
            if soon:
                continue
            self.available[p] = False
            self.count -= self.trace.numel[p]

    def used_soon(self, param: int, step: int) -> bool:
        """Whether the next use of a parameter, from a fetch on, is within the reuse distance."""
        passed = self.trace.passed
        again = next((use for use in self.trace.uses[param] if use >= step), None)
        return again is not None and passed[again] - passed[step] < self.limits.reuse
