"""Which parameters stage 3 has gathered, and when.

A mirror of deepspeed 0.19.8 zero/partitioned_param_coordinator.py from the second step on, when
the order of modules is known: `_fetch_sub_module_impl` (line 355), `release_sub_module` (494)
and `__params_to_release` (634). Nothing in it depends on batch, sequence or mesh, so it runs
once for a model and a set of options. It agrees with measured runs to the byte at the end of
forward; the padding of each parameter to a multiple of the ranks is left out.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from msgspec import Struct

from .modules import Module


class Limits(Struct, frozen=True):
    """The options that decide what stays gathered, in elements."""

    prefetch: int = 50_000_000  # stage3_prefetch_bucket_size
    live: int = 1_000_000_000  # stage3_max_live_parameters
    reuse: int = 1_000_000_000  # stage3_max_reuse_distance
    persist: int = 100_000  # stage3_param_persistence_threshold


NEVER, ANEW, HELD = 0, 1, 2  # a layer's forward is not run again; it is; its weights are held


class Stack(Struct, frozen=True):
    """Modules before, in and behind the stack. `layers`: (groups, how many, whether run again).

    HELD: a checkpoint with hooks keeps what its second forward saves as tensors of its own (torch
    2.11 utils/checkpoint.py _recomputation_hook: `x.detach()`), weights among them, so their memory
    stays until backward has read them, although the coordinator has let them go.
    """

    before: tuple[Module, ...]
    layers: tuple[tuple[tuple[tuple[Module, ...], ...], int, int], ...]
    after: tuple[Module, ...]
    tied: bool = False  # the head's first parameter is the embedding's
    width: int = 1  # bytes of an element
    wide: frozenset[int] = frozenset()  # sizes of parameters that have another width
    other: int = 1


class Gathered(Struct, frozen=True):
    """Bytes in gathered parameters: at the end of forward, and in each layer's backward.

    `layers[i]` are what is gathered when the parameters of layer i get their gradients, in
    backward's order of modules; `forward[i]` is the most during layer i's forward. `fetched` is
    the most that the layers ask for at once.
    """

    end: int
    head: int
    forward: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    embedding: int
    fetched: int


class Trace:
    """Parameters by number, modules in the order of their calls."""

    def __init__(self, stack: Stack) -> None:
        self.numel: list[int] = []
        self.bytes: list[int] = []
        self.widths = (stack.width, stack.wide, stack.other)
        self.modules: list[tuple[int, ...]] = []
        self.events: list[tuple[int, bool]] = []  # module, whether fetched (else released)
        self.marks: list[tuple[str, int]] = []
        self.layers: list[list[int]] = []  # modules of each layer, in the order of forward
        self.after: list[int] = []  # and behind the stack
        self.begun = 0  # events before the first layer
        self._build(stack)

    def _add(self, module: Module, first: int | None = None) -> int:
        ids = []
        for size in module:
            if first is not None:
                ids.append(first)
                first = None
                continue
            ids.append(len(self.numel))
            self.numel.append(size)
            width, wide, other = self.widths
            self.bytes.append(size * (other if size in wide else width))
        self.modules.append(tuple(ids))
        return len(self.modules) - 1

    def _event(self, module: int, fetched: bool, kind: str = "", layer: int = 0) -> None:
        self.events.append((module, fetched))
        self.marks.append((kind, layer))

    def _build(self, stack: Stack) -> None:
        before = [self._add(m) for m in stack.before]
        layers = [
            ([[self._add(m) for m in group] for group in groups], again)
            for groups, count, again in stack.layers
            for _ in range(count)
        ]
        after = [self._add(m) for m in stack.after[:-1]]
        after.append(self._add(stack.after[-1], 0 if stack.tied else None))
        self.layers = [[m for group in groups for m in group] for groups, _ in layers]
        self.after = after
        self._forward(before, "")
        self.begun = len(self.events)
        for index, (groups, _) in enumerate(layers):
            self._forward([m for group in groups for m in group], "forward", index)
        self._forward(after, "")
        self.marks[-1] = ("end", 0)
        self._event(before[0], True)
        self._event(after[-1], True, "head")
        self._event(after[-1], False)
        self._event(before[1], True)
        for ident in after[-2::-1]:
            self._event(ident, True)
            self._event(ident, False)
        for index in range(len(layers) - 1, -1, -1):
            self._backward(*layers[index], index)
        for ident in reversed(before[2:]):
            if self.modules[ident]:
                self._event(ident, True, "embedding")

    def _forward(self, ids: list[int], kind: str, layer: int = 0, end: str | None = None) -> None:
        for ident in ids:
            self._event(ident, True, kind, layer)
            if self.modules[ident]:
                self._event(ident, False, kind if end is None else end, layer)

    def _backward(self, groups: list[list[int]], again: int, layer: int) -> None:
        """The layer, then its groups from the last to the first, each one's holder first.

        A checkpointed layer runs forward again when the last module's backward asks for its
        input, and stops before that module's end.
        """
        order = [m for group in (groups[:1] + groups[:0:-1]) for m in (group[0], *group[:0:-1])]
        ids = [m for group in groups for m in group]
        for ident in order:
            self._event(ident, True, "layer" if self.modules[ident] else "", layer)
            if ident == ids[-1] and again:
                self._forward(ids[:-1], "", layer, "held" if again == HELD else "")
                self._event(ident, True, "again", layer)
            if self.modules[ident]:
                self._event(ident, False)


class Coordinator:
    """The state that fetch and release work on."""

    def __init__(self, trace: Trace, limits: Limits) -> None:
        self.trace = trace
        self.limits = limits
        numel = trace.numel
        self.persistent = [n <= limits.persist for n in numel]
        self.available = list(self.persistent)
        self.handles: dict[int, list[int]] = {}  # in flight: [waiting parameters, flat bytes]
        self.recent = [-1] * len(numel)
        self.step = 0
        self.count = 0  # DeepSpeed's own count of elements
        self.held = 0  # bytes that are really allocated
        self.asked = 0  # bytes of the largest gather since someone looked
        self.saved: dict[int, int] = {}  # bytes that a second forward holds, by parameter
        steps = [m for m, fetched in trace.events if fetched]
        self.queue = deque((p, i) for i, m in enumerate(steps) for p in sorted(trace.modules[m]))
        self.passed = [0]
        self.uses: list[list[int]] = [[] for _ in numel]
        for i, m in enumerate(steps):
            self.passed.append(self.passed[-1] + sum(numel[p] for p in trace.modules[m]))
            for p in trace.modules[m]:
                self.uses[p].append(i)

    def gather(self, params: list[int]) -> None:
        """One parameter arrives in its own storage, several in a flat buffer first."""
        trace = self.trace
        count, size = (sum(sizes[p] for p in params) for sizes in (trace.numel, trace.bytes))
        handle = [len(params), size, 0]
        self.count += count
        self.held += size
        self.asked = max(self.asked, size)
        for p in params:
            self.handles[p] = handle

    def wait(self, param: int) -> None:
        """The first wait copies every parameter out of the flat buffer, the last one frees it."""
        handle = self.handles.pop(param)
        several = handle[2] or handle[0] > 1
        if several and not handle[2]:
            handle[2] = 1
            self.held += handle[1]
        handle[0] -= 1
        if several and not handle[0]:
            self.held -= handle[1]
        self.available[param] = True

    def fetch(self, params: tuple[int, ...]) -> int:
        """Gather what the module needs, then prefetch; returns the most that was held."""
        missing = [p for p in params if not self.available[p] and p not in self.handles]
        if missing:
            self.gather(missing)
        high = self.held
        for p in params:
            if p in self.handles:
                self.wait(p)
                high = max(high, self.held)
        for _ in range(sum(self.recent[p] < self.step for p in params)):
            p, at = self.queue.popleft()
            self.recent[p] = at
        self.prefetch()
        self.step += 1
        return max(high, self.held)

    def prefetch(self) -> None:
        """Take parameters off the queue until the bucket or the limit of live ones is full."""
        room = min(self.limits.live - self.count, self.limits.prefetch)
        wanted: dict[int, None] = {}
        size = 0
        while self.queue and size < room:
            p, at = self.queue.popleft()
            if at > self.recent[p]:
                self.recent[p] = at
            if not self.available[p] and p not in self.handles and p not in wanted:
                wanted[p] = None
                size += self.trace.numel[p]
        if wanted:
            self.gather(list(wanted))

    def release(self, params: tuple[int, ...], *, holds: bool = False) -> None:
        """Let go of what is not persistent, not promised, and not used again soon.

        `holds`: a second forward holds it still, until the next release.
        """
        step = self.step
        for p in params if not holds else ():
            self.held -= self.saved.pop(p, 0)
        for p in params:
            if self.persistent[p] or self.recent[p] > step or not self.available[p]:
                continue
            again = next((use for use in self.uses[p] if use >= step), None)
            if again is not None and self.passed[again] - self.passed[step] < self.limits.reuse:
                continue
            self.available[p] = False
            self.count -= self.trace.numel[p]
            if holds:
                self.saved[p] = self.trace.bytes[p]
            else:
                self.held -= self.trace.bytes[p]


@lru_cache(maxsize=64)
def gathered(stack: Stack, limits: Limits) -> Gathered:
    """Run one step's fetches and releases, and note what is held at the instants that matter."""
    trace = Trace(stack)
    state = Coordinator(trace, limits)
    depth = sum(count for _, count, _ in stack.layers)
    forward = [0] * depth
    layers: list[list[int]] = [[] for _ in range(depth)]
    notes = {"end": 0, "head": 0, "embedding": 0}
    fetched_at_once = 0
    for (module, fetched), (kind, layer) in zip(trace.events, trace.marks, strict=True):
        params = trace.modules[module]
        state.asked = 0
        high = state.fetch(params) if fetched else 0
        if not fetched:
            state.release(params, holds=kind == "held")
        if kind in ("forward", "layer"):
            fetched_at_once = max(fetched_at_once, state.asked)
        if kind == "forward":
            forward[layer] = max(forward[layer], high)
        elif kind == "layer":
            layers[layer].extend([high] * len(params))
        elif kind == "again":  # a second forward has come between
            layers[layer] = [max(high, before) for before in layers[layer]]
        elif kind in notes:
            notes[kind] = max(state.held, notes[kind])
    return Gathered(
        notes["end"], notes["head"], tuple(forward), tuple(map(tuple, layers)), notes["embedding"],
        fetched_at_once,
    )  # fmt: skip
