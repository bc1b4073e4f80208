"""DeepSpeed's levels as tables: for each instant, the layers at which it may be highest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.num import Bytes
from ....ledger.remember import remembered
from . import levels as hook_levels
from .cache_key import CacheKey
from .coordinator import GatherLimits, ModuleStack
from .gather import Reads
from .gather_script import (
    GatheredBlock,
    GatheredModel,
    gather_script,
    gathered_model,
    small_parameters,
)
from .hook_points import HookedBlock
from .layout import ZeroLayout
from .levels import (
    NOTHING,
    CountingAllocator,
    KeptMarks,
    Marks,
    MicroBatch,
    ModelShape,
    mark_places,
    only_hooks,
)


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

    def only_hooks(self, *kinds: str) -> BlockTable:
        """The blocks with hooks of some kinds alone."""

        def bare(blocks: tuple[HookedBlock, HookedBlock]) -> tuple[HookedBlock, HookedBlock]:
            forward, backward = blocks
            return only_hooks(forward, *kinds), only_hooks(backward, *kinds)

        return replace(
            self,
            groups=tuple((*bare((forward, back)), count) for forward, back, count in self.groups),
            first=None if self.first is None else bare(self.first),
            head=bare(self.head),
            embedding=None if self.embedding is None else only_hooks(self.embedding, *kinds),
        )

    def shape(self, counts: Iterable[int]) -> ModelShape:
        """The blocks of a model with `counts` layers in each group."""
        layers: list[tuple[HookedBlock, HookedBlock]] = []
        for (forward, backward, _), count in zip(self.groups, counts, strict=True):
            layers += [(forward, backward)] * count
        if self.first is not None:
            layers[0] = self.first
        return ModelShape(tuple(layers), self.head, self.embedding)

    def gathered(self, plan: ZeroLayout) -> GatheredModel:
        """What stage 3 gathers."""
        assert self.stack is not None
        counts = [count for _, _, count in self.groups]
        *reads, head = self.reads
        each = [one for one, count in zip(reads, counts, strict=False) for _ in range(count)]
        if self.first is not None:
            each[0] = reads[-1]
        pairs = zip(self.shape(counts).layers, each, strict=True)
        layers = [GatheredBlock(a.passes, b.passes, one) for (a, b), one in pairs]
        forward, backward = self.head
        last = GatheredBlock(forward.passes, backward.passes, head)
        return gathered_model(plan, self.stack, layers, last)


Places = tuple[tuple[int, int], ...]


class LevelTable(Struct, frozen=True, dict=True):
    """The levels of an instant, by the number of layers of its group that wait for backward.

    buckets: marks of gradients and buckets in each micro-batch
    gathered: marks of gathered parameters, in stage 3
    places: of each level, its mark of buckets and its mark of gathered parameters
    """

    buckets: dict[int, list[Marks]]
    gathered: dict[int, Marks]
    places: Places

    @cached_property
    def totals(self) -> dict[int, tuple[list[int], list[int]]]:
        """Bytes of each mark, of buckets the highest of the micro-batches."""
        known: dict[tuple[int, ...], list[int]] = {}  # equal marks are the same object

        def most(*rows: Marks) -> list[int]:
            ids = tuple(map(id, rows))
            return known.get(ids) or known.setdefault(ids, _most(rows))

        none = (NOTHING,)
        return {
            waiting: (most(*rows), most(self.gathered.get(waiting, none)))
            for waiting, rows in self.buckets.items()
        }

    @cached_property
    def rows(self) -> dict[int, list[int]]:
        """Bytes of each level; equal rows are the same object."""
        kinds = {(id(own), id(more)): (own, more) for own, more in self.totals.values()}
        each = {
            kind: [own[at] + more[by] for at, by in self.places]
            for kind, (own, more) in kinds.items()
        }
        return {n: each[id(own), id(more)] for n, (own, more) in self.totals.items()}

    @cached_property
    def best(self) -> tuple[tuple[int, int], ...]:
        """(waiting layers, level) of every candidate for the peak. Activations grow linearly with
        the layers that wait, so only points on the upper convex hull can be the peak.
        """
        waiting = sorted(self.totals, reverse=True)
        several = [self.totals[count] for count in waiting]
        kinds = {(id(own), id(more)): (own, more) for own, more in several}
        if len(kinds) == 1:
            return tuple((waiting[0], level) for level, _ in enumerate(self.places))
        numbers = {kind: number for number, kind in enumerate(kinds)}
        rows = [numbers[id(own), id(more)] for own, more in several]
        hulls = {}
        for at, by in {*self.places}:
            heights = [own[at] + more[by] for own, more in kinds.values()]
            hulls[at, by] = _upper_hull(waiting, [heights[row] for row in rows])
        return tuple(
            (count, level) for level, place in enumerate(self.places) for count in hulls[place]
        )

    @cached_property
    def heights(self) -> list[int]:
        """Bytes of every candidate, in the order of `best`."""
        found = []
        for waiting, level in self.best:
            (own, more), (at, by) = self.totals[waiting], self.places[level]
            found.append(own[at] + more[by])
        return found

    @cached_property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Waiting layers, level and bytes of every candidate, each in an array."""
        import numpy

        waiting, levels = numpy.array(self.best, dtype="int64").T
        return waiting, levels, numpy.array(self.heights, dtype="int64")

    def candidate_parts(self, number: int) -> Any:
        """Bytes of each of DeepSpeed's groups at a candidate, in an array."""
        if number not in self._parts:
            import numpy

            self._parts[number] = numpy.array(self.parts(*self.best[number]), dtype="int64")
        return self._parts[number]

    @cached_property
    def _parts(self) -> dict[int, Any]:
        return {}

    def parts(self, waiting: int, level: int) -> tuple[Bytes, ...]:
        """Bytes of each of DeepSpeed's groups at a level."""
        at, by = self.places[level]
        buckets = max(row[at] for row in self.buckets[waiting])[1]
        if waiting not in self.gathered:
            return cast(tuple[Bytes, ...], buckets)
        gathered = self.gathered[waiting][by][1]
        return cast(tuple[Bytes, ...], tuple(a + b for a, b in zip(buckets, gathered, strict=True)))


@remembered(1024, always=True)
def _table(
    rows: tuple[tuple[int, tuple[KeptMarks, ...], KeptMarks | None], ...], places: Places
) -> LevelTable:
    """The table of some marks: for each number of waiting layers those of the micro-batches, and
    those of gathered parameters.
    """
    buckets = {n: [one.value for one in marks] for n, marks, _ in rows}
    return LevelTable(buckets, {n: more.value for n, _, more in rows if more is not None}, places)


def _most(rows: Sequence[Marks]) -> list[int]:
    """Bytes of each mark, the most of some micro-batches."""
    totals = [[one[0] for one in row] for row in rows]
    return totals[0] if len(totals) == 1 else list(map(max, *totals))


def _upper_hull(waiting: list[int], column: list[int]) -> list[int]:
    """The numbers of waiting layers, most first, whose bytes are on the upper convex hull."""
    if column[0] == max(column):
        return waiting[:1]
    hull: list[tuple[int, int]] = []
    for point in zip(waiting, column, strict=True):
        if hull and point[1] <= hull[-1][1]:
            continue
        while len(hull) > 1 and _under(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return [count for count, _ in hull]


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
    micro = int(plan.run.micro_batches)
    marks = _bucket_marks(plan, model)[:micro]
    if model.stack is None:
        first = _tables(marks[:1], None, model)
        return first, _tables(marks[1:], None, model) if marks[1:] else first, {}, {}
    hooks = model.only_hooks(*hook_levels.GATHER_HOOKS)
    gathers = hooks.gathered(plan)
    gathered = _gather_marks(gathers, hooks, known=True, small=True)
    first = _tables(marks[:1], gathered, model)
    recorded = _tables(marks[:1], _gather_marks(gathers, hooks), model)
    small = sum(small_parameters(gathers).values())
    if len(marks) == 1:
        return first, first, {}, _higher(recorded, first, small)
    later = _tables(marks[1:], gathered, model)
    second = _tables(marks[1:2], _gather_marks(gathers, hooks, known=True), model)
    return first, later, _higher(second, later, small), _higher(recorded, first, small)


def _bucket_marks(plan: ZeroLayout, model: BlockTable) -> list[MicroBatch]:
    """The marks of gradients and buckets in each micro-batch of a step.

    What is gathered changes nothing, nor does where blocks have other hooks. Which micro-batch is
    the last changes something in stage 1, and where gradients go to the host.
    """
    alike = plan.stage > 1 and plan.offload == "none"
    bare = replace(
        plan,
        offload_param="none",
        limits=GatherLimits(),
        sub_group=1 << 62,
        zero_init=True,
        run=replace(plan.run, micro_batches=3) if alike else plan.run,
    )
    hooks = model.only_hooks(*hook_levels.BUCKET_HOOKS)
    return _cached_bucket_marks(CacheKey(bare, replace(hooks, stack=None, reads=())))


@remembered(48, always=True)
def _cached_bucket_marks(key: CacheKey) -> list[MicroBatch]:
    plan, model, counter = key.plan, key.more, CountingAllocator()
    rank = hook_levels.BUCKETS[plan.stage](plan, counter)
    shape = model.shape(count for _, _, count in model.groups)
    found = []
    for rank.micro in range(int(plan.run.micro_batches)):
        found.append(hook_levels.bucket_marks(rank, counter, shape))
    return found


def _higher(tables: Tables, usual: Tables, small: int) -> Tables:
    """The tables with a level above the usual one, which has `small` bytes of persistent parameters
    beside it.
    """

    def exceeds(table: LevelTable, other: LevelTable) -> bool:
        pairs = ((row, other.rows[waiting]) for waiting, row in table.rows.items())
        each = {(id(row), id(lower)): (row, lower) for row, lower in pairs}.values()
        return any(a > b + small for pair in each for a, b in zip(*pair, strict=True))

    return {place: one for place, one in tables.items() if exceeds(one, usual[place])}


@remembered(48, always=True)
def _gather_marks(
    gathers: GatheredModel, model: BlockTable, *, known: bool = False, small: bool = False
) -> MicroBatch:
    """Stage 3's marks of gathered parameters. `known`: the order of modules is recorded; `small`:
    persistent parameters are gathered before. `model` has the hooks of gathers alone.
    """
    given = tuple(small_parameters(gathers)) if small else ()
    script = gather_script(gathers, given, known=known)
    return hook_levels.gather_marks(script, model.shape(count for _, _, count in model.groups))


def _tables(
    buckets: Sequence[MicroBatch], gathered: MicroBatch | None, model: BlockTable
) -> Tables:
    """One table for each place, over all of these micro-batches."""

    def table(
        word: str, block: HookedBlock | None, layers: Iterable[tuple[int, int]] | None = None
    ) -> LevelTable:
        rows = [getattr(one, word) for one in buckets]
        more = getattr(gathered, word) if gathered else None
        gathers = gathered is not None
        if layers is None:
            places = _level_places(block, len(rows[0].value), gathers=gathers)
            return _table(((0, tuple(rows), more),), places)
        each = ((n, tuple(one[at] for one in rows), more and more[at]) for n, at in layers)
        return _table(tuple(each), _level_places(block, 0, gathers=gathers))

    tables: Tables = {}
    low = 0
    for index, (*blocks, count) in enumerate(model.groups):
        first = model.first if model.first is not None and not low else blocks
        for number, word in enumerate(("forward", "backward")):
            tables[word, index, True] = table(word, first[number], [(0, low)])
            if count > 1:
                others = [(n, low + n) for n in range(1, count)]
                tables[word, index, False] = table(word, blocks[number], others)
        low += count
    heads = {"loss": model.head[0], "head": model.head[1], "embedding": model.embedding}
    for word in ("begin", "loss", "head", "embedding", "epilogue"):
        tables[word, 0, False] = table(word, heads.get(word))
    tables["step", 0, False] = _table(((0, (buckets[-1].epilogue,), None),), ((1, 0),))
    return tables


@remembered(512, always=True)
def _level_places(block: HookedBlock | None, count: int, *, gathers: bool) -> Places:
    """Of each level of a block, its mark of buckets and its mark of gathered parameters; without a
    block, the `count` marks themselves.
    """
    if block is None:
        return tuple((at, at if gathers else 0) for at in range(count))
    buckets = mark_places(block, *hook_levels.BUCKET_HOOKS)
    hooks = hook_levels.GATHER_HOOKS if gathers else ()
    return tuple(zip(buckets, mark_places(block, *hooks), strict=True))
