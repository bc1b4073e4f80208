"""The levels of a step as tables: for each kind of instant, the layers at which it may be highest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import replace

from .coordinator import Limits, Stack
from .counting import BUCKETS, NOTHING, Counter, Level, Levels, Shape, gather_levels, micro_batches
from .cues import Part
from .gathering import Reads
from .keeper3 import ShardKeeper
from .plan import Plan

Row = list[tuple[int, Level, Level]]  # bytes in all, of gradients, of gathered parameters


class Model(Struct, frozen=True):
    """Stretches as (forward, backward, layers), the first layer where it differs, head, embedding.

    `stack` and `reads` are for stage 3: its modules, and the elements that operations read, for
    each stretch, the first layer and the head.
    """

    stretches: tuple[tuple[Part, Part, int], ...]
    first: tuple[Part, Part] | None
    head: tuple[Part, Part]
    embedding: Part | None
    stack: Stack | None = None
    limits: Limits | None = None
    reads: tuple[Reads, ...] = ()

    def shape(self, counts: Iterable[int]) -> Shape:
        """With so many layers in each stretch."""
        layers = [part[:2] for part, count in zip(self.stretches, counts, strict=True)
                  for _ in range(count)]  # fmt: skip
        if self.first is not None:
            layers[0] = self.first
        return Shape(tuple(layers), self.head, self.embedding)


class Table(Struct, frozen=True, dict=True):
    """Rows of levels, one for each number of layers of the stretch that wait."""

    rows: dict[int, Row]

    @cached_property
    def best(self) -> tuple[tuple[int, int], ...]:
        """(waiting layers, level) of every candidate: the more wait, the more they keep, so only
        the upper hull of the levels can be highest.
        """
        waiting = sorted(self.rows, reverse=True)
        if len(waiting) == 1:
            return tuple((waiting[0], j) for j in range(len(self.rows[waiting[0]])))
        found: list[tuple[int, int]] = []
        for j in range(len(self.rows[waiting[0]])):
            hull: list[tuple[int, int]] = []
            for count in waiting:
                high = self.rows[count][j][0]
                if hull and high <= hull[-1][1]:
                    continue
                while len(hull) > 1 and _under(hull[-2], hull[-1], (count, high)):
                    hull.pop()
                hull.append((count, high))
            found += [(count, j) for count, _ in hull]
        return tuple(found)

    def parts(self, waiting: int, level: int) -> tuple[int, ...]:
        """Bytes of each group."""
        _, one, other = self.rows[waiting][level]
        return tuple(a + b for a, b in zip(one[1], other[1], strict=True))


def _under(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether b is on or under the line from a to c."""
    return (b[1] - a[1]) * (a[0] - c[0]) <= (c[1] - a[1]) * (a[0] - b[0])


Place = tuple[str, int, bool]  # what runs, which stretch, whether its first layer
Tables = dict[Place, Table]


class Case:
    """A plan of plain numbers and a model; equal ones have the same levels."""

    __slots__ = ("hash", "key", "model", "plan")

    def __init__(self, plan: Plan, model: Model, ranks: int, micro_batches: int) -> None:
        count = min(micro_batches, 3)
        self.plan, self.model = plan, model
        self.key = (
            model, ranks, count, plan.stage, plan.width, plan.trained_width, plan.bucket,
            plan.overlap, plan.contiguous, plan.offload, plan.offload_param, plan.runs,
            int(plan.trainable), int(plan.table),
        )  # fmt: skip
        self.hash = hash(self.key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and self.key == other.key

    @property
    def numbers(self) -> Plan:
        """The plan with this case's numbers."""
        run = replace(self.plan.run, micro_batches=self.key[2])
        return replace(self.plan, run=run, ranks=self.key[1], trainable=int(self.plan.trainable))


@lru_cache(maxsize=128)
def tables(case: Case) -> tuple[Tables, Tables, Tables]:
    """Of a step's first micro-batch, of those behind it, and of the second one of the first step,
    in which stage 3 gathers small parameters too; of the first where there is no other.
    """
    model, plan = case.model, case.numbers
    counts = [count for _, _, count in model.stretches]
    counter = Counter()
    keeper = BUCKETS[plan.stage](plan, counter)
    found = micro_batches(keeper, counter, model.shape(counts), int(plan.run.micro_batches))
    gathered = _gathered(plan, model, small=True) if model.stack is not None else None
    first = _tables(found[:1], gathered, model)
    if len(found) == 1:
        return first, first, first
    later = _tables(found[1:], gathered, model)
    if gathered is None:
        return first, later, later
    return first, later, _tables(found[1:2], _gathered(plan, model, small=False), model)


def _gathered(plan: Plan, model: Model, *, small: bool) -> Levels:
    """Stage 3's levels."""
    assert model.stack is not None and model.limits is not None
    counts = [count for _, count, _ in model.stack.layers]
    shape, *own, head = model.shape(counts), *model.reads
    reads = dict(enumerate(r for r, count in zip(own, counts, strict=False) for _ in range(count)))
    if model.first is not None:
        reads[0] = own[-1]
    counter = Counter()
    keeper = ShardKeeper(plan, counter, model.stack, model.limits, {**reads, -1: head},
                         group=1 << 62, zero_init=True)  # fmt: skip
    return gather_levels(keeper, counter, shape, small=small)


def _tables(buckets: Sequence[Levels], other: Levels | None, model: Model
            ) -> Tables:  # fmt: skip
    """All tables of the micro-batches, which are not told apart."""
    def rows(found: Iterable[list[Level]], more: list[Level] | None) -> Row:
        made: list[Row] = [
            [(b[0] + g[0], b, g) for b, g in zip(levels, more or [NOTHING] * len(levels),
                                                 strict=True)]
            for levels in found
        ]  # fmt: skip
        return made[0] if len(made) == 1 else [max(column) for column in zip(*made, strict=True)]

    tables: Tables = {}
    low = 0
    for index, (_, _, count) in enumerate(model.stretches):
        for word in ("forward", "backward"):
            made: dict[int, Row] = {}
            for q in range(count):
                more = getattr(other, word)[low + q] if other else None
                made[q] = rows((getattr(one, word)[low + q] for one in buckets), more)
            tables[word, index, True] = Table({0: made.pop(0)})
            if made:
                tables[word, index, False] = Table(made)
        low += count
    for word in ("loss", "head", "embedding", "epilogue"):
        more = getattr(other, word) if other else None
        tables[word, 0, False] = Table({0: rows((getattr(one, word) for one in buckets), more)})
    tables["step", 0, False] = Table({0: rows(([buckets[-1].epilogue[-1]],), None)})
    begin = rows(([one.begin] for one in buckets), [other.begin] if other else None)
    tables["begin", 0, False] = Table({0: begin})
    return tables
