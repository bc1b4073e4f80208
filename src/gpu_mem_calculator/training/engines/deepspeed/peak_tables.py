"""DeepSpeed's levels as tables: for each instant, the layers at which it may be highest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.num import Bytes
from ....ledger.remember import remembered
from ...step.block_events import HEAD
from . import levels as hook_levels
from .cache_key import CacheKey
from .coordinator import ModuleStack
from .gather import Reads
from .hook_points import HookedBlock
from .layout import ZeroLayout
from .levels import CountingAllocator, HookLevels, Level, ModelShape
from .rank_stage3 import Stage3Rank


class BlockTable(Struct, frozen=True):
    """The blocks of a model with their hook points.

    groups: (forward, backward, number of layers) of each layer group
    first: the first layer, where it differs from its group
    head, embedding: (forward, backward), and the embedding's backward
    stack: stage 3's modules
    reads: stage 3's elements that operations read, for each group, the first layer and the head
    """

    groups: tuple[tuple[HookedBlock, HookedBlock, int], ...]
    first: tuple[HookedBlock, HookedBlock] | None
    head: tuple[HookedBlock, HookedBlock]
    embedding: HookedBlock | None
    stack: ModuleStack | None = None
    reads: tuple[Reads, ...] = ()

    def shape(self, counts: Iterable[int]) -> ModelShape:
        """The blocks of a model with `counts` layers in each group."""
        layers: list[tuple[HookedBlock, HookedBlock]] = []
        for (forward, backward, _), count in zip(self.groups, counts, strict=True):
            layers += [(forward, backward)] * count
        if self.first is not None:
            layers[0] = self.first
        return ModelShape(tuple(layers), self.head, self.embedding)


class LevelTable(Struct, frozen=True, dict=True):
    """The levels of an instant, by the number of layers of its group that wait for backward.

    buckets: levels of gradients and buckets in each micro-batch
    gathered: levels of gathered parameters, in stage 3
    """

    buckets: dict[int, list[list[Level]]]
    gathered: dict[int, list[Level]]

    @cached_property
    def rows(self) -> dict[int, list[int]]:
        """Bytes of each level, the highest of the micro-batches."""
        return {waiting: self._row(waiting) for waiting in self.buckets}

    def _row(self, waiting: int) -> list[int]:
        columns = zip(*self.buckets[waiting], strict=True)
        most = [
            column[0][0] if len(column) == 1 else max(one[0] for one in column)
            for column in columns
        ]
        if waiting not in self.gathered:
            return most
        return [a + b[0] for a, b in zip(most, self.gathered[waiting], strict=True)]

    @cached_property
    def best(self) -> tuple[tuple[int, int], ...]:
        """(waiting layers, level) of every candidate for the peak. Activations grow linearly with
        the layers that wait, so only points on the upper convex hull can be the peak.
        """
        waiting = sorted(self.rows, reverse=True)
        candidates: list[tuple[int, int]] = []
        for level, column in enumerate(zip(*(self.rows[n] for n in waiting), strict=True)):
            hull: list[tuple[int, int]] = []
            for point in zip(waiting, column, strict=True):
                if hull and point[1] <= hull[-1][1]:
                    continue
                while len(hull) > 1 and _under(hull[-2], hull[-1], point):
                    hull.pop()
                hull.append(point)
            candidates += [(count, level) for count, _ in hull]
        return tuple(candidates)

    @cached_property
    def heights(self) -> list[int]:
        """Bytes of every candidate, in the order of `best`."""
        return [self.rows[waiting][level] for waiting, level in self.best]

    def parts(self, waiting: int, level: int) -> tuple[Bytes, ...]:
        """Bytes of each of DeepSpeed's groups at a level."""
        buckets = max(row[level] for row in self.buckets[waiting])[1]
        if waiting not in self.gathered:
            return cast(tuple[Bytes, ...], buckets)
        gathered = self.gathered[waiting][level][1]
        return cast(tuple[Bytes, ...], tuple(a + b for a, b in zip(buckets, gathered, strict=True)))


def _under(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether b is on or under the line from a to c."""
    return (b[1] - a[1]) * (a[0] - c[0]) <= (c[1] - a[1]) * (a[0] - b[0])


Place = tuple[str, int, bool]  # what runs, index of the layer group, whether its first layer
Tables = dict[Place, LevelTable]


@remembered(48, always=True)
def tables(key: CacheKey) -> tuple[Tables, Tables, Tables, Tables]:
    """Four tables: of a step's first micro-batch; of the later ones (the first's if there is none);
    and of the second and the first micro-batch of the first step, with the places that may be
    higher there. In stage 3 these gather persistent parameters too, and the first one records the
    order of modules.
    """
    plan, model = key.plan, key.more
    counts = [count for _, _, count in model.groups]
    counter = CountingAllocator()
    rank = hook_levels.BUCKETS[plan.stage](plan, counter)
    micro = int(plan.run.micro_batches)
    levels = hook_levels.micro_batches(rank, counter, model.shape(counts), micro)
    if model.stack is None:
        first = _tables(levels[:1], None, model)
        return first, _tables(levels[1:], None, model) if levels[1:] else first, {}, {}
    gathered, small = _gather_levels(plan, model, small=True)
    first = _tables(levels[:1], gathered, model)
    recorded = _tables(levels[:1], _gather_levels(plan, model, small=False, known=False)[0], model)
    if len(levels) == 1:
        return first, first, {}, _higher(recorded, first, small)
    later = _tables(levels[1:], gathered, model)
    second = _tables(levels[1:2], _gather_levels(plan, model, small=False)[0], model)
    return first, later, _higher(second, later, small), _higher(recorded, first, small)


def _higher(tables: Tables, usual: Tables, small: int) -> Tables:
    """The tables with a level above the usual one, which has `small` bytes of persistent parameters
    beside it.
    """
    return {
        place: table
        for place, table in tables.items()
        if any(
            a > b + small
            for waiting, row in table.rows.items()
            for a, b in zip(row, usual[place].rows[waiting], strict=True)
        )
    }


def _smallest_divisor(ranks: int) -> int:
    """The smallest number above one that divides the ranks; one rank alone gathers nothing."""
    return next((n for n in range(2, ranks + 1) if ranks % n == 0), 1)


def _gather_levels(
    plan: ZeroLayout, model: BlockTable, *, small: bool, known: bool = True
) -> tuple[HookLevels, int]:
    """Stage 3's levels of gathered parameters, and the bytes of persistent ones.

    Where the ranks divide every parameter and shards are on the GPU, the number of ranks changes
    nothing; nor do buckets or micro-batches. The cache key leaves them out.
    """
    sizes = {*plan.counts, *plan.frozen_counts}
    divides = plan.offload_param == "none" and not any(size % plan.ranks for size in sizes)
    bare = replace(
        plan,
        ranks=_smallest_divisor(int(plan.ranks)) if divides else plan.ranks,
        bucket=0,
        overlap=False,
        contiguous=True,
        offload="none",
        sub_group=1 << 62,
        zero_init=True,
        run=replace(plan.run, micro_batches=1),
    )
    return _cached_gather_levels(CacheKey(bare, model), small, known)


@remembered(48, always=True)
def _cached_gather_levels(key: CacheKey, small: bool, known: bool) -> tuple[HookLevels, int]:
    model: BlockTable = key.more
    assert model.stack is not None
    counts = [count for _, count, _ in model.stack.layers]
    *layer_reads, head = model.reads
    reads = dict(
        enumerate(r for r, count in zip(layer_reads, counts, strict=False) for _ in range(count))
    )
    if model.first is not None:
        reads[0] = layer_reads[-1]
    counter = CountingAllocator()
    rank = Stage3Rank(key.plan, counter, model.stack, {**reads, HEAD: head})
    return hook_levels.gather_levels(rank, counter, model.shape(counts), small=small, known=known)


def _tables(
    buckets: Sequence[HookLevels], gathered: HookLevels | None, model: BlockTable
) -> Tables:
    """One table for each place, over all of these micro-batches."""

    def table(word: str, places: Iterable[tuple[int, int]] | None = None) -> LevelTable:
        rows = [getattr(one, word) for one in buckets]
        more = getattr(gathered, word) if gathered else None
        if places is None:
            return LevelTable({0: rows}, {0: more} if more else {})
        return LevelTable(
            {n: [one[at] for one in rows] for n, at in places},
            {n: more[at] for n, at in places} if more else {},
        )

    tables: Tables = {}
    low = 0
    for index, (_, _, count) in enumerate(model.groups):
        for word in ("forward", "backward"):
            tables[word, index, True] = table(word, [(0, low)])
            if count > 1:
                tables[word, index, False] = table(word, [(n, low + n) for n in range(1, count)])
        low += count
    for word in ("begin", "loss", "head", "embedding", "epilogue"):
        tables[word, 0, False] = table(word)
    tables["step", 0, False] = LevelTable({0: [buckets[-1].epilogue[-1:]]}, {})
    return tables
