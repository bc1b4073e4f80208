"""The parts of a recorded module: a script for each, and the modules that it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from msgspec import Struct

from ..autograd.events import BlockEvents, Call
from ..run.record import Groups, RecordedPart, Shape
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


class ModuleParts(Struct, kw_only=True):
    """The parts, and what is made before the stack and outlives it."""

    before: RecordedPart
    layers: tuple[RecordedPart, ...]
    order: tuple[int, ...]
    after: RecordedPart
    held: tuple[tuple[str, int], ...]  # until forward ends
    kept: tuple[tuple[str, int], ...]  # until its own backward


def split_module(seen: RecordedRun) -> ModuleParts:
    """Every part; equal layers are one."""
    pieces = split_items(seen)
    ends = TensorEnds(seen, pieces)
    before, *layers, after = (_part(seen, pieces, ends, n) for n in range(seen.last + 1))
    distinct: list[RecordedPart] = []
    for part in layers:
        if part not in distinct:
            distinct.append(part)
    return ModuleParts(
        before=before, layers=tuple(distinct), order=tuple(map(distinct.index, layers)),
        after=after, held=_labels(seen, ends.held), kept=_labels(seen, ends.kept),
    )  # fmt: skip


def _labels(seen: RecordedRun, tensors: Iterable[int]) -> tuple[tuple[str, int], ...]:
    return tuple((seen.labels[t], seen.sizes[t]) for t in tensors)


class PartEvents:
    """The events of a part, its tensors numbered anew."""

    def __init__(self, seen: RecordedRun, gone: set[int]) -> None:
        self.seen, self.gone = seen, gone
        self.ids: dict[int, int] = {}

    def id(self, tensor: int) -> int:
        """The new number of a tensor."""
        return self.ids.setdefault(tensor, len(self.ids))

    def event(self, item: int) -> list[int]:
        """An event, unless its tensor is no part's or goes elsewhere."""
        tensor, seen = item if item >= 0 else ~item, self.seen
        if tensor in seen.outside or tensor in seen.handles or (item < 0 and tensor in self.gone):
            return []
        return [self.id(tensor) if item >= 0 else ~self.id(tensor)]

    def forward(self, items: Items) -> tuple[tuple[int, ...], tuple[Call, ...]]:
        """A forward: its events, and the calls of modules that own weights."""
        events: list[int] = []
        calls: list[Call] = []
        begun: dict[str, int] = {}
        for item in items:
            if not isinstance(item, TraceMark):
                events += self.event(item)
            elif item.word == "in" and item.name in self.seen.owned:
                begun[item.name] = len(events)
            elif item.word == "out" and item.name in begun:
                begin = begun.pop(item.name)
                calls.append((begin, len(events), self.seen.elements(item.name)))
        return tuple(events), tuple(sorted(calls))

    def sizes(self) -> tuple[int, ...]:
        """Bytes of each tensor."""
        return tuple(self.seen.sizes[tensor] for tensor in self.ids)

    def work(self) -> tuple[int, ...]:
        """The tensors that are workspace."""
        return tuple(number for tensor, number in self.ids.items() if tensor in self.seen.work)


class PartBackward:
    """A part's backward: its events, and the gradients of weights as they come."""

    def __init__(self, lines: PartEvents, items: Items, given: int, soon: list[int]) -> None:
        self.lines = lines
        self.events: list[int] = [~lines.id(tensor) for tensor in soon]
        self.calls: list[Call] = []
        self.hooks: list[int] = []
        self.grads: list[int] = []
        self.matmul = -1
        self._begun: dict[str, int] = {}
        self._come: dict[str, list[str]] = {}
        for item in items:
            if isinstance(item, TraceMark):
                self._mark(item)
            elif item in lines.seen.handles:
                self.matmul = len(self.events) if self.matmul < 0 else self.matmul
            elif item != given:  # which comes from the next part
                self.events += lines.event(item)
        for module in list(self._come):
            self._complete(module)

    def _mark(self, mark: TraceMark) -> None:
        if mark.word == "in":
            self._begun.setdefault(mark.name, len(self.events))
        elif mark.word == "weight":
            module = self.lines.seen.readers[mark.name]
            self._come.setdefault(module, []).append(mark.name)
            if len(self._come[module]) == len(self.lines.seen.owned[module]):
                self._complete(module)

    def _complete(self, module: str) -> None:
        """Every weight of a module has its gradient."""
        seen, at = self.lines.seen, len(self.events)
        self.calls.append((self._begun.pop(module, at), at, seen.elements(module)))
        for name in self._come.pop(module):
            self.hooks.append(at)
            self.grads.append(self.lines.id(seen.arrived[name]))


def _part(
    seen: RecordedRun, pieces: dict[Place, Items], ends: TensorEnds, number: int
) -> RecordedPart:
    """One part."""
    prefix = f"{seen.stack[number - 1]}." if 0 < number < seen.last else ""
    script = (
        _block_events(seen, pieces, ends, number) if number else _before_events(seen, pieces, ends)
    )
    return RecordedPart(
        kind={0: "before", seen.last: "after"}.get(number, seen.kind),
        weights=tuple((name.removeprefix(prefix), shape)
                      for name, shape in _weights(seen, pieces, number)),
        modules=_groups(seen, pieces[STEP, number], prefix), script=script,
        once=_once_events(seen, pieces[ONCE, number], script.sizes[script.entry])
        if number else script,
        kept=_kept_tensors(seen, pieces, ends, number, prefix),
    )  # fmt: skip


def _block_events(
    seen: RecordedRun, pieces: dict[Place, Items], ends: TensorEnds, number: int
) -> BlockEvents:
    lines = PartEvents(seen, ends.gone)
    entry = lines.id(seen.flows[number - 1])
    events, calls = lines.forward([i for i in pieces[STEP, number] if i != ~seen.flows[-1]])
    leaves = lines.id(seen.flows[number])
    given = lines.id(seen.grads[number])
    items = [i for i in pieces[BACK, number] if i != ~seen.flows[-1]]
    back = PartBackward(lines, items, seen.grads[number], ends.soon.get(number, []))
    later = [~lines.id(tensor) for tensor in ends.late.get(number, [])]
    below = seen.grads[number - 1]
    return BlockEvents(
        entry=entry, exit=leaves, exit_grad=given,
        entry_grad=lines.id(below) if below >= 0 else -1,
        forward=events, calls=calls, backward=(*back.events, *later),
        back_calls=tuple(back.calls), hooks=tuple(back.hooks), matmul=back.matmul,
        drops=tuple(zip(back.hooks, back.grads, strict=True)),
        sizes=lines.sizes(), work=lines.work(),
    )  # fmt: skip


def _before_events(seen: RecordedRun, pieces: dict[Place, Items], ends: TensorEnds) -> BlockEvents:
    """What stands before the stack is played backward alone; whatever it makes beside gradients is
    workspace.
    """
    lines = PartEvents(seen, ends.gone)
    given = lines.id(seen.grads[0]) if seen.grads[0] >= 0 else -1
    back = PartBackward(lines, pieces[BACK, 0], seen.grads[0], [])
    free = [~given] * (given >= 0 and ~given not in back.events)
    return BlockEvents(
        entry=-1, exit=-1, exit_grad=given, forward=(), backward=(*back.events, *free),
        drops=tuple((0, tensor) for tensor in reversed(back.grads)), sizes=lines.sizes(),
        work=tuple(n for n in lines.ids.values() if n != given and n not in back.grads),
    )  # fmt: skip


def _once_events(seen: RecordedRun, items: Items, entry_bytes: int) -> BlockEvents:
    """A forward that keeps nothing: what it frees and has not made is its input."""
    lines = PartEvents(seen, set())
    made = [i for i in items if not isinstance(i, TraceMark) and i >= 0]
    freed = [~i for i in items if not isinstance(i, TraceMark) and i < 0]
    strange = [t for t in freed if t not in made and t not in seen.outside]
    entry = max(strange, default=-1)
    own = [i for i in items if isinstance(i, TraceMark) or i >= 0 or ~i in made or ~i == entry]
    lines.id(entry)
    events, calls = lines.forward(own)
    left = [t for t in made if t not in freed and t not in seen.handles]
    leaves = lines.id(left[-1]) if left else 0
    sizes = (entry_bytes, *(seen.sizes[tensor] for tensor in list(lines.ids)[1:]))
    return BlockEvents(sizes=sizes, entry=0, exit=leaves, forward=events, calls=calls,
                  work=lines.work())  # fmt: skip


def _kept_tensors(
    seen: RecordedRun, pieces: dict[Place, Items], ends: TensorEnds, number: int, prefix: str
) -> tuple[tuple[str, int], ...]:
    """What forward keeps for backward, in the order in which backward frees it."""
    if not number:
        return ()
    there = {seen.flows[number - 1], *(i for i in pieces[STEP, number]
                                       if not isinstance(i, TraceMark) and i >= 0)}  # fmt: skip
    freed = (~i for i in pieces[BACK, number] if not isinstance(i, TraceMark) and i < 0)
    moved = (*ends.soon.get(number, ()), *ends.late.get(number, ()))
    found = [t for t in (*freed, *moved) if t in there and (t not in ends.gone or t in moved)
             and t != seen.flows[-1]]  # fmt: skip
    layer = prefix[:-1]
    return tuple(
        ("input" if t == seen.flows[number - 1] else
         seen.labels[t].removeprefix(prefix).removeprefix(f"{layer}: "), seen.sizes[t])
        for t in found
    )  # fmt: skip


def _weights(
    seen: RecordedRun, pieces: dict[Place, Items], number: int
) -> Iterator[tuple[str, Shape]]:
    """Parameters of a part: those of the modules that it calls, but for one that a module reads in
    another part, where its gradient arrives; at last those that nothing reads.
    """
    called = dict.fromkeys(_called_modules(pieces[STEP, number]))
    here = {i.name for i in pieces[BACK, number] if isinstance(i, TraceMark) and i.word == "weight"}
    for module in called:
        for name, shape in seen.owned.get(module, {}).items():
            if name in here or name.rpartition(".")[0] == module:
                yield name, shape
    for name in seen.arrived:
        module = seen.readers[name]
        if name in here and module not in called and name.rpartition(".")[0] != module:
            yield name, seen.owned[module][name]
    yield from (
        (name, shape) for name, shape in seen.unused.items() if seen.readers[name] in called
    )


def _called_modules(items: Items) -> Iterator[str]:
    """Modules in the order of their first calls."""
    yield from dict.fromkeys(i.name for i in items if isinstance(i, TraceMark) and i.word == "in")


def _groups(seen: RecordedRun, items: Items, prefix: str) -> Groups:
    """Modules as they are called; each child of the layer begins a group."""
    groups: list[list[tuple[int, ...]]] = []
    for name in (i.name for i in items if isinstance(i, TraceMark) and i.word == "in"):
        sizes = tuple(map(prod, seen.owned.get(name, {}).values()))
        inner = name.removeprefix(prefix) if name.startswith(prefix) else ""
        if groups and "." in inner:
            groups[-1].append(sizes)
        else:
            groups.append([sizes])
    return tuple(map(tuple, groups))
