"""A recording of a forward and a backward pass, split into the parts of a module.

Forward is split where a layer begins, backward where the gradient of a layer's input is complete. A
tensor belongs to the part that allocates it. Where another part frees it (a skip connection, a
table that all layers read), its own part frees it instead, at the nearest point.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from msgspec import Struct

from ...run.record import Shape

ONCE, STEP, BACK = "once", "step", "back"  # forward without a graph; with a graph; its backward
Place = tuple[str, int]  # one of the three, and the number of a part


class TraceMark(NamedTuple):
    """A mark between events.

    - `where`: ONCE, STEP or BACK
    - `word`: begin, end (of a pass), layer (its input gradient is complete), in, out (of a module),
      weight (its gradient is complete)
    - `name`: the module, the weight, or the layer's number
    """

    where: str
    word: str
    name: str


Items = list[int | TraceMark]


class RecordedRun(Struct, kw_only=True):
    """A recording: allocations (i) and frees (~i) of tensors, with marks between them.

    Part 0 comes before the stack of layers, parts 1 and on are the layers, the last comes after
    them.

    - `flows[i]`: the tensor that part i passes on; the last is the loss
    - `grads[i]`: the gradient of `flows[i]`; -1 where there is none
    """

    items: Items
    sizes: list[int]
    labels: list[str]  # the module and operation that made a tensor
    work: frozenset[int]  # tensors that are workspace
    outside: frozenset[int]  # tensors of no part: weights, buffers, the batch
    handles: frozenset[int]  # workspaces of cuBLAS handles
    flows: list[int]
    grads: list[int]
    arrived: dict[str, int]  # the gradient of each weight
    owned: dict[str, dict[str, Shape]]  # module -> the trained parameters that it reads
    readers: dict[str, str]  # trained parameter -> the module that reads it
    unused: dict[str, Shape]  # trained parameters without a gradient
    stack: list[str]  # the layers' names
    kind: str  # the layers' class

    @property
    def last(self) -> int:
        """The number of the part after the stack."""
        return len(self.stack) + 1

    def elements(self, module: str) -> int:
        """Elements of the trained parameters that a module reads."""
        return sum(map(prod, self.owned.get(module, {}).values()))


def split_items(run: RecordedRun) -> dict[Place, Items]:
    """The items of each part in each pass.

    Tensors that the model's loop over layers still refers to are freed after the last layer
    returned: those frees belong to the last layer.
    """
    pieces: dict[Place, Items] = {
        (w, n): [] for w in (ONCE, STEP, BACK) for n in range(run.last + 1)
    }
    places = {name: number for number, name in enumerate(run.stack, 1)}
    where, part, returned = "", 0, False
    for item in run.items:
        if isinstance(item, TraceMark):
            if item.word == "begin":
                where, part = item.where, run.last if item.where == BACK else 0
            elif item.word == "layer":
                part = int(item.name)
            elif item.word == "end":
                where = ""
            elif where != BACK and item.word == "in":
                part, returned = (run.last if returned else places.get(item.name, part)), False
            returned = returned or (where != BACK and item[1:] == ("out", run.stack[-1]))
        elif returned and item >= 0:
            part, returned = run.last, False
        if where:
            pieces[where, part].append(item)
    return pieces


class TensorEnds:
    """Tensors that another part frees than the one that allocated them, and where they end instead.

    - `held`: of part 0, freed during forward
    - `kept`: of part 0, freed in backward
    - `soon`, `late`: part -> tensors freed at the beginning, at the end of its backward
    - `moved`: every tensor that is not freed where it was recorded
    """

    def __init__(self, run: RecordedRun, pieces: dict[Place, Items]) -> None:
        self.run = run
        self.held: list[int] = []
        self.kept: list[int] = []
        self.late: dict[int, list[int]] = {}
        self.soon: dict[int, list[int]] = {}
        self.moved: set[int] = set()
        allocated: dict[int, Place] = {}
        freed: dict[int, Place] = {}
        for place, items in pieces.items():
            for item in items if place[0] != ONCE else ():
                if not isinstance(item, TraceMark):
                    (allocated if item >= 0 else freed)[item if item >= 0 else ~item] = place
        if run.flows[0] in run.outside:  # the batch itself flows into the first layer
            self.late[1] = [run.flows[0]]
        stays = {*run.arrived.values(), *run.handles, run.flows[-1]}
        for tensor, place in allocated.items():
            if tensor not in stays:
                self._settle(tensor, place, freed.get(tensor, (BACK, place[1])))

    def _settle(self, tensor: int, place: Place, end: Place) -> None:
        where, part = place
        if part == 0 and where == STEP and tensor != self.run.flows[0]:
            if end != place:
                (self.held if end[0] == STEP else self.kept).append(tensor)
                self.moved.add(tensor)
        elif (end[1] != part and not self._passes(tensor, where, end[1])) or (
            where == STEP and end == (BACK, 0)
        ):
            self.moved.add(tensor)
            if where == STEP and (end[0] == STEP or end[1] > part):
                self.soon.setdefault(max(part, 1), []).append(tensor)
            else:
                self.late.setdefault(max(part, 1), []).append(tensor)

    def _passes(self, tensor: int, where: str, part: int) -> bool:
        """Whether a tensor is what flows into this part, or its gradient: the part may free it."""
        if where == STEP:
            return part > 0 and self.run.flows[part - 1] == tensor
        return self.run.grads[part] == tensor


def with_marks(events: Sequence[int], marks: list[tuple[int, str]]) -> Items:
    """Events and marks in the order in which they were recorded."""
    items: Items = []
    end = 0
    for at, text in marks:
        items += events[end:at]
        items.append(TraceMark(*text.split("|", 2)))
        end = at
    return [*items, *events[end:]]
