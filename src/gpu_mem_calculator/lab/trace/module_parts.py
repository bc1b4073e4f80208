"""The parts of a recorded module: the events of each, and the modules that it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from msgspec import Struct

from ...ledger.num import Bytes, sized
from ...pytorch.autograd.events import BlockEvents, Call
from ...run.record import ModuleGroups, RecordedPart, Shape
from .recorded_run import (
    BACK,
    ONCE,
    STEP,
    Items,
    Place,
    RecordedRun,
    TensorEnds,
    TraceMark,
    split_items,
)

Pieces = dict[Place, Items]


class ModuleParts(Struct, kw_only=True):
    """The parts of a module: before its stack of layers, the distinct layers, after it.

    - `order`: for each layer, its index in `layers`
    - `held`, `kept`: label and bytes of tensors of the part before that live until forward ends,
      and until their own backward
    """

    before: RecordedPart
    layers: tuple[RecordedPart, ...]
    order: tuple[int, ...]
    after: RecordedPart
    held: tuple[tuple[str, int], ...]
    kept: tuple[tuple[str, int], ...]


def split_module(run: RecordedRun) -> ModuleParts:
    """The parts of a recording; equal layers are one part."""
    pieces = split_items(run)
    ends = TensorEnds(run, pieces)
    before, *layers, after = (_part(run, pieces, ends, n) for n in range(run.last + 1))
    distinct: list[RecordedPart] = []
    for part in layers:
        if part not in distinct:
            distinct.append(part)
    return ModuleParts(
        before=before,
        layers=tuple(distinct),
        order=tuple(map(distinct.index, layers)),
        after=after,
        held=_labels(run, ends.held),
        kept=_labels(run, ends.kept),
    )


def _labels(run: RecordedRun, tensors: Iterable[int]) -> tuple[tuple[str, int], ...]:
    return tuple((run.labels[t], run.sizes[t]) for t in tensors)


class PartEvents:
    """Converts items of a part to events, with its tensors numbered from 0."""

    def __init__(self, run: RecordedRun, moved: set[int]) -> None:
        self.run, self.moved = run, moved
        self.ids: dict[int, int] = {}

    def id(self, tensor: int) -> int:
        """The number of a tensor within the part."""
        return self.ids.setdefault(tensor, len(self.ids))

    def event(self, item: int) -> list[int]:
        """The event of an item; none where the tensor is of no part, or is freed elsewhere."""
        tensor, run = item if item >= 0 else ~item, self.run
        if tensor in run.outside or tensor in run.handles or (item < 0 and tensor in self.moved):
            return []
        return [self.id(tensor) if item >= 0 else ~self.id(tensor)]

    def forward(self, items: Items) -> tuple[tuple[int, ...], tuple[Call, ...]]:
        """The events of a forward, and the calls of modules that read weights."""
        events: list[int] = []
        calls: list[Call] = []
        starts: dict[str, int] = {}
        for item in items:
            if not isinstance(item, TraceMark):
                events += self.event(item)
            elif item.word == "in" and item.name in self.run.owned:
                starts[item.name] = len(events)
            elif item.word == "out" and item.name in starts:
                begin = starts.pop(item.name)
                calls.append((begin, len(events), self.run.elements(item.name)))
        return tuple(events), tuple(sorted(calls))

    def sizes(self) -> tuple[Bytes, ...]:
        """Bytes of each tensor of the part."""
        return tuple(sized(self.run.sizes[tensor], 8) for tensor in self.ids)

    def work(self) -> tuple[int, ...]:
        """The numbers of tensors that are workspace."""
        return tuple(number for tensor, number in self.ids.items() if tensor in self.run.work)


class PartBackward:
    """The events of a part's backward, and the gradients of weights in order of arrival."""

    def __init__(self, lines: PartEvents, items: Items, exit_grad: int, soon: list[int]) -> None:
        self.lines = lines
        self.events: list[int] = [~lines.id(tensor) for tensor in soon]
        self.calls: list[Call] = []
        self.hooks: list[int] = []
        self.grads: list[int] = []
        self.matmul = -1
        self._starts: dict[str, int] = {}
        self._arrived: dict[str, list[str]] = {}
        for item in items:
            if isinstance(item, TraceMark):
                self._mark(item)
            elif item in lines.run.handles:
                self.matmul = len(self.events) if self.matmul < 0 else self.matmul
            elif item != exit_grad:  # it comes from the next part
                self.events += lines.event(item)
        for module in list(self._arrived):
            self._complete(module)

    def _mark(self, mark: TraceMark) -> None:
        if mark.word == "in":
            self._starts.setdefault(mark.name, len(self.events))
        elif mark.word == "weight":
            module = self.lines.run.readers[mark.name]
            self._arrived.setdefault(module, []).append(mark.name)
            if len(self._arrived[module]) == len(self.lines.run.owned[module]):
                self._complete(module)

    def _complete(self, module: str) -> None:
        """End the call of a module: every weight of it has its gradient."""
        run, at = self.lines.run, len(self.events)
        self.calls.append((self._starts.pop(module, at), at, run.elements(module)))
        for name in self._arrived.pop(module):
            self.hooks.append(at)
            self.grads.append(self.lines.id(run.arrived[name]))


def _part(run: RecordedRun, pieces: Pieces, ends: TensorEnds, number: int) -> RecordedPart:
    """The part with this number."""
    prefix = f"{run.stack[number - 1]}." if 0 < number < run.last else ""
    if number:
        events = _block_events(run, pieces, ends, number)
        once = _once_events(run, pieces[ONCE, number], events.sizes[events.entry])
    else:
        events = once = _before_events(run, pieces, ends)
    weights = _weights(run, pieces, number)
    return RecordedPart(
        kind={0: "before", run.last: "after"}.get(number, run.kind),
        weights=tuple((name.removeprefix(prefix), shape) for name, shape in weights),
        modules=_groups(run, pieces[STEP, number], prefix),
        script=events,
        once=once,
        kept=_kept_tensors(run, pieces, ends, number, prefix),
    )


def _block_events(run: RecordedRun, pieces: Pieces, ends: TensorEnds, number: int) -> BlockEvents:
    numbered = PartEvents(run, ends.moved)
    entry = numbered.id(run.flows[number - 1])
    events, calls = numbered.forward([i for i in pieces[STEP, number] if i != ~run.flows[-1]])
    exit_id = numbered.id(run.flows[number])
    exit_grad = numbered.id(run.grads[number])
    items = [i for i in pieces[BACK, number] if i != ~run.flows[-1]]
    back = PartBackward(numbered, items, run.grads[number], ends.soon.get(number, []))
    late = [~numbered.id(tensor) for tensor in ends.late.get(number, [])]
    below = run.grads[number - 1]
    return BlockEvents(
        entry=entry,
        exit=exit_id,
        exit_grad=exit_grad,
        entry_grad=numbered.id(below) if below >= 0 else -1,
        forward=events,
        calls=calls,
        backward=(*back.events, *late),
        back_calls=tuple(back.calls),
        hooks=tuple(back.hooks),
        matmul=back.matmul,
        drops=tuple(zip(back.hooks, back.grads, strict=True)),
        sizes=numbered.sizes(),
        work=numbered.work(),
    )


def _before_events(run: RecordedRun, pieces: Pieces, ends: TensorEnds) -> BlockEvents:
    """The events of the part before the stack: its backward alone; every tensor but gradients is
    workspace.
    """
    numbered = PartEvents(run, ends.moved)
    exit_grad = numbered.id(run.grads[0]) if run.grads[0] >= 0 else -1
    back = PartBackward(numbered, pieces[BACK, 0], run.grads[0], [])
    free = [~exit_grad] * (exit_grad >= 0 and ~exit_grad not in back.events)
    return BlockEvents(
        entry=-1,
        exit=-1,
        exit_grad=exit_grad,
        forward=(),
        backward=(*back.events, *free),
        drops=tuple((0, tensor) for tensor in reversed(back.grads)),
        sizes=numbered.sizes(),
        work=tuple(n for n in numbered.ids.values() if n != exit_grad and n not in back.grads),
    )


def _once_events(run: RecordedRun, items: Items, entry_bytes: Bytes) -> BlockEvents:
    """The events of a forward without a graph; its input is what it frees and did not make."""
    numbered = PartEvents(run, set())
    allocated, freed = _allocated(items), _freed(items)
    inputs = [t for t in freed if t not in allocated and t not in run.outside]
    entry = max(inputs, default=-1)
    foreign = {~tensor for tensor in freed if tensor not in allocated and tensor != entry}
    numbered.id(entry)
    events, calls = numbered.forward([i for i in items if i not in foreign])
    left = [t for t in allocated if t not in freed and t not in run.handles]
    exit_id = numbered.id(left[-1]) if left else 0
    sizes = (entry_bytes, *numbered.sizes()[1:])
    return BlockEvents(
        sizes=sizes, entry=0, exit=exit_id, forward=events, calls=calls, work=numbered.work()
    )


def _kept_tensors(
    run: RecordedRun, pieces: Pieces, ends: TensorEnds, number: int, prefix: str
) -> tuple[tuple[str, int], ...]:
    """Label and bytes of what forward keeps for backward, in the order that backward frees it."""
    if not number:
        return ()
    entry = run.flows[number - 1]
    alive = {entry, *_allocated(pieces[STEP, number])}
    moved = (*ends.soon.get(number, ()), *ends.late.get(number, ()))
    elsewhere = {*ends.moved} - {*moved} | {run.flows[-1]}
    kept = []
    for tensor in (*_freed(pieces[BACK, number]), *moved):
        if tensor in alive and tensor not in elsewhere:
            label = run.labels[tensor].removeprefix(prefix).removeprefix(f"{prefix[:-1]}: ")
            kept.append(("input" if tensor == entry else label, run.sizes[tensor]))
    return tuple(kept)


def _allocated(items: Items) -> list[int]:
    """The tensors that items allocate, in order."""
    return [i for i in items if not isinstance(i, TraceMark) and i >= 0]


def _freed(items: Items) -> list[int]:
    """The tensors that items free, in order."""
    return [~i for i in items if not isinstance(i, TraceMark) and i < 0]


def _weights(run: RecordedRun, pieces: Pieces, number: int) -> Iterator[tuple[str, Shape]]:
    """Name and shape of a part's parameters.

    Those of the modules that it calls; a parameter that a module reads from elsewhere belongs to
    the part in which its gradient arrives. Last, those without a gradient.
    """
    called = dict.fromkeys(_names(pieces[STEP, number], "in"))
    arrived = set(_names(pieces[BACK, number], "weight"))
    for module in called:
        for name, shape in run.owned.get(module, {}).items():
            if name in arrived or name.rpartition(".")[0] == module:
                yield name, shape
    for name in run.arrived:
        module = run.readers[name]
        if name in arrived and module not in called and name.rpartition(".")[0] != module:
            yield name, run.owned[module][name]
    yield from ((name, shape) for name, shape in run.unused.items() if run.readers[name] in called)


def _names(items: Items, word: str) -> Iterator[str]:
    """The names of the marks with a word: modules that are called ("in"), weights."""
    return (i.name for i in items if isinstance(i, TraceMark) and i.word == word)


def _groups(run: RecordedRun, items: Items, prefix: str) -> ModuleGroups:
    """Elements of the weights of each called module, in groups; a child of the layer begins one."""
    groups: list[list[tuple[int, ...]]] = []
    for name in _names(items, "in"):
        sizes = tuple(map(prod, run.owned.get(name, {}).values()))
        inner = name.removeprefix(prefix) if name.startswith(prefix) else ""
        if groups and "." in inner:
            groups[-1].append(sizes)
        else:
            groups.append([sizes])
    return tuple(map(tuple, groups))
