"""A recording of a forward and a backward, cut into the parts of a module.

Forward is cut where a layer begins, backward where the gradient of what flows into a layer is
there. A tensor belongs to the part that makes it; where another part frees it (a skip connection,
a table that all layers read) its own part does so at the nearest place that it has.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from msgspec import Struct

from ..run.record import Shape

ONCE, STEP, BACK = "once", "step", "back"  # a forward without a graph, one with it, its backward
Place = tuple[str, int]  # in which of them, and in which part


class TraceMark(NamedTuple):
    """Something that happened: begin, end, layer, in, out, weight."""

    where: str
    word: str
    name: str


Items = list[int | TraceMark]


class RecordedRun(Struct, kw_only=True):
    """What was recorded: tensors that are made (i) or freed (~i), and marks between them.

    Parts are numbered: before the stack 0, its layers from 1 on, behind it last. `flows[i]` is what
    comes out of part i, at the end the loss; `grads[i]` its gradient, -1 where there is none.
    """

    items: Items
    sizes: list[int]
    labels: list[str]  # who made a tensor
    work: frozenset[int]  # tensors that are workspace
    outside: frozenset[int]  # tensors that are no part's: weights, buffers, the batch
    handles: frozenset[int]  # workspaces of cuBLAS's handles
    flows: list[int]
    grads: list[int]
    arrived: dict[str, int]  # the gradient of each weight
    owned: dict[str, dict[str, Shape]]  # the trained parameters that each module reads itself
    readers: dict[str, str]  # and the module that reads each of them
    unused: dict[str, Shape]  # trained parameters that no gradient has reached
    stack: list[str]  # the layers' names
    kind: str  # and their class

    @property
    def last(self) -> int:
        """The number of the part behind the stack."""
        return len(self.stack) + 1

    def elements(self, module: str) -> int:
        """Of the weights that a module reads itself."""
        return sum(map(prod, self.owned.get(module, {}).values()))


def split_items(seen: RecordedRun) -> dict[Place, Items]:
    """The items of each part, in each direction.

    What the model's loop names goes when the last layer has returned: it is that layer's.
    """
    found: dict[Place, Items] = {(w, n): [] for w in (ONCE, STEP, BACK)
                                 for n in range(seen.last + 1)}  # fmt: skip
    places = {name: number for number, name in enumerate(seen.stack, 1)}
    where, part, returned = "", 0, False
    for item in seen.items:
        if isinstance(item, TraceMark):
            if item.word == "begin":
                where, part = item.where, seen.last if item.where == BACK else 0
            elif item.word == "layer":
                part = int(item.name)
            elif item.word == "end":
                where = ""
            elif where != BACK and item.word == "in":
                part, returned = (seen.last if returned else places.get(item.name, part)), False
            returned = returned or (where != BACK and item[1:] == ("out", seen.stack[-1]))
        elif returned and item >= 0:
            part, returned = seen.last, False
        if where:
            found[where, part].append(item)
    return found


class TensorEnds:
    """Where tensors go that another part frees than the one that made them."""

    def __init__(self, seen: RecordedRun, pieces: dict[Place, Items]) -> None:
        self.seen = seen
        self.held: list[int] = []
        self.kept: list[int] = []
        self.late: dict[int, list[int]] = {}  # at the end of a part's backward
        self.soon: dict[int, list[int]] = {}  # at its beginning
        self.gone: set[int] = set()  # not where it was seen
        made: dict[int, Place] = {}
        freed: dict[int, Place] = {}
        for place, items in pieces.items():
            for item in items if place[0] != ONCE else ():
                if not isinstance(item, TraceMark):
                    (made if item >= 0 else freed)[item if item >= 0 else ~item] = place
        if seen.flows[0] in seen.outside:  # the batch itself flows into the first layer
            self.late[1] = [seen.flows[0]]
        stays = {*seen.arrived.values(), *seen.handles, seen.flows[-1]}
        for tensor, place in made.items():
            if tensor not in stays:
                self._settle(tensor, place, freed.get(tensor, (BACK, place[1])))

    def _settle(self, tensor: int, place: Place, end: Place) -> None:
        where, part = place
        if part == 0 and where == STEP and tensor != self.seen.flows[0]:
            if end != place:
                (self.held if end[0] == STEP else self.kept).append(tensor)
                self.gone.add(tensor)
        elif (end[1] != part and not self._passes(tensor, where, end[1])) or (
            where == STEP and end == (BACK, 0)
        ):
            self.gone.add(tensor)
            if where == STEP and (end[0] == STEP or end[1] > part):
                self.soon.setdefault(max(part, 1), []).append(tensor)
            else:
                self.late.setdefault(max(part, 1), []).append(tensor)

    def _passes(self, tensor: int, where: str, part: int) -> bool:
        """Whether it is what flows between two parts, and this is one that knows it."""
        if where == STEP:
            return part > 0 and self.seen.flows[part - 1] == tensor
        return self.seen.grads[part] == tensor
