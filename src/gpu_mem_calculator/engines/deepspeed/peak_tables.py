"""The levels of a step as tables: for each instant the layers at which it may be highest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.remember import remembered
from ...step.block_events import HEAD
from .cache_key import CacheKey
from .coordinator import GatherLimits, ModuleStack
from .gather import Reads
from .hook_points import HookedBlock
from .layout import ZeroLayout
from .levels import (
    BUCKETS,
    CountingAllocator,
    HookLevels,
    Level,
    ModelShape,
    gather_levels,
    micro_batches,
)
from .rank_stage3 import Stage3Rank


class BlockTable(Struct, frozen=True):
    """Stretches as (forward, backward, layers), the first layer where it differs, head, embedding.

    `stack` and `reads` are for stage 3: its modules, and the elements that operations read, for
    each stretch, the first layer and the head.
    """

    stretches: tuple[tuple[HookedBlock, HookedBlock, int], ...]
    first: tuple[HookedBlock, HookedBlock] | None
    head: tuple[HookedBlock, HookedBlock]
    embedding: HookedBlock | None
    stack: ModuleStack | None = None
    limits: GatherLimits | None = None
    reads: tuple[Reads, ...] = ()

    def shape(self, counts: Iterable[int]) -> ModelShape:
        """With so many layers in each stretch."""
        layers = [part[:2] for part, count in zip(self.stretches, counts, strict=True)
                  for _ in range(count)]  # fmt: skip
        if self.first is not None:
            layers[0] = self.first
        return ModelShape(tuple(layers), self.head, self.embedding)


class LevelTable(Struct, frozen=True, dict=True):
    """Levels by the number of layers of the stretch that wait: those of buckets, in each of the
    micro-batches, and of gathered parameters.
    """

    buckets: dict[int, list[list[Level]]]
    gathered: dict[int, list[Level]]

    @cached_property
    def rows(self) -> dict[int, list[int]]:
        """Bytes in all."""
        return {waiting: self._row(waiting) for waiting in self.buckets}

    def _row(self, waiting: int) -> list[int]:
        columns = zip(*self.buckets[waiting], strict=True)
        most = [column[0][0] if len(column) == 1 else max(one[0] for one in column)
                for column in columns]  # fmt: skip
        if waiting not in self.gathered:
            return most
        return [a + b[0] for a, b in zip(most, self.gathered[waiting], strict=True)]

    @cached_property
    def best(self) -> tuple[tuple[int, int], ...]:
        """(waiting layers, level) of every candidate: the more wait, the more they keep, so only
        the upper hull of the levels can be highest.
        """
        waiting = sorted(self.rows, reverse=True)
        found: list[tuple[int, int]] = []
        for level, column in enumerate(zip(*(self.rows[n] for n in waiting), strict=True)):
            hull: list[tuple[int, int]] = []
            for point in zip(waiting, column, strict=True):
                if hull and point[1] <= hull[-1][1]:
                    continue
                while len(hull) > 1 and _under(hull[-2], hull[-1], point):
                    hull.pop()
                hull.append(point)
            found += [(count, level) for count, _ in hull]
        return tuple(found)

    @cached_property
    def heights(self) -> list[int]:
        """Bytes in all of every candidate."""
        return [self.rows[waiting][level] for waiting, level in self.best]

    def parts(self, waiting: int, level: int) -> tuple[int, ...]:
        """Bytes of each group."""
        found = max(row[level] for row in self.buckets[waiting])[1]
        if waiting not in self.gathered:
            return found
        other = self.gathered[waiting][level][1]
        return tuple(a + b for a, b in zip(found, other, strict=True))


def _under(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether b is on or under the line from a to c."""
    return (b[1] - a[1]) * (a[0] - c[0]) <= (c[1] - a[1]) * (a[0] - b[0])


Place = tuple[str, int, bool]  # what runs, which stretch, whether its first layer
Tables = dict[Place, LevelTable]


@remembered(48, always=True)
def tables(case: CacheKey) -> tuple[Tables, Tables, Tables, Tables]:
    """Of a step's first micro-batch, and of those behind it (of the first where there is none).

    Then of the first step's second and first micro-batch, where they may be higher: in stage 3 they
    gather small parameters too, and the first one records the order of modules.
    """
    plan, model = case.plan, case.more
    counts = [count for _, _, count in model.stretches]
    counter = CountingAllocator()
    keeper = BUCKETS[plan.stage](plan, counter)
    found = micro_batches(keeper, counter, model.shape(counts), int(plan.run.micro_batches))
    if model.stack is None:
        first = _tables(found[:1], None, model)
        return first, _tables(found[1:], None, model) if found[1:] else first, {}, {}
    gathered, small = _gathered(plan, model, small=True)
    first = _tables(found[:1], gathered, model)
    recorded = _tables(found[:1], _gathered(plan, model, small=False, known=False)[0], model)
    if len(found) == 1:
        return first, first, {}, _higher(recorded, first, small)
    later = _tables(found[1:], gathered, model)
    second = _tables(found[1:2], _gathered(plan, model, small=False)[0], model)
    return first, later, _higher(second, later, small), _higher(recorded, first, small)


def _higher(found: Tables, usual: Tables, small: int) -> Tables:
    """Tables that have a level above the usual one, to which small parameters come."""
    return {
        place: table for place, table in found.items()
        if any(a > b + small for waiting, row in table.rows.items()
               for a, b in zip(row, usual[place].rows[waiting], strict=True))
    }  # fmt: skip


def _least(ranks: int) -> int:
    """The smallest number above one that divides the ranks; one rank alone gathers nothing."""
    return next((n for n in range(2, ranks + 1) if ranks % n == 0), 1)


def _gathered(
    plan: ZeroLayout, model: BlockTable, *, small: bool, known: bool = True
) -> tuple[HookLevels, int]:
    """Stage 3's levels, and the bytes of small parameters.

    Where every parameter is a multiple of the ranks, and shards are here, their number changes
    nothing; nor do buckets or micro-batches.
    """
    sizes = {*plan.counts, *plan.frozen_counts}
    alike = plan.offload_param == "none" and not any(size % plan.ranks for size in sizes)
    bare = replace(
        plan, ranks=_least(plan.ranks) if alike else plan.ranks, bucket=0, overlap=False,
        contiguous=True, offload="none", run=replace(plan.run, micro_batches=1),
    )  # fmt: skip
    return _gathering(CacheKey(bare, model), small, known)


@remembered(48, always=True)
def _gathering(case: CacheKey, small: bool, known: bool) -> tuple[HookLevels, int]:
    model: BlockTable = case.more
    assert model.stack is not None
    assert model.limits is not None
    counts = [count for _, count, _ in model.stack.layers]
    *own, head = model.reads
    reads = dict(enumerate(r for r, count in zip(own, counts, strict=False) for _ in range(count)))
    if model.first is not None:
        reads[0] = own[-1]
    counter = CountingAllocator()
    keeper = Stage3Rank(case.plan, counter, model.stack, model.limits, {**reads, HEAD: head},
                         group=1 << 62, zero_init=True)  # fmt: skip
    return gather_levels(keeper, counter, model.shape(counts), small=small, known=known)


def _tables(buckets: Sequence[HookLevels], other: HookLevels | None, model: BlockTable) -> Tables:
    """All tables of the micro-batches, which are not told apart."""

    def table(word: str, places: Iterable[tuple[int, int]] | None = None) -> LevelTable:
        several = [getattr(one, word) for one in buckets]
        more = getattr(other, word) if other else None
        if places is None:
            return LevelTable({0: several}, {0: more} if more else {})
        return LevelTable({n: [one[at] for one in several] for n, at in places},
                     {n: more[at] for n, at in places} if more else {})  # fmt: skip

    tables: Tables = {}
    low = 0
    for index, (_, _, count) in enumerate(model.stretches):
        for word in ("forward", "backward"):
            tables[word, index, True] = table(word, [(0, low)])
            if count > 1:
                tables[word, index, False] = table(word, [(n, low + n) for n in range(1, count)])
        low += count
    for word in ("begin", "loss", "head", "embedding", "epilogue"):
        tables[word, 0, False] = table(word)
    tables["step", 0, False] = LevelTable({0: [buckets[-1].epilogue[-1:]]}, {})
    return tables
