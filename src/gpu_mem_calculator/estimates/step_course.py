"""A training step in the order in which it runs, layer by layer: what is alive at each moment.

It is read from the stream that the replay gets, whose last step is one that all later ones repeat.
What stays through the whole step is listed by the ledger's entries, what comes and goes by the
stream's tensors; together they are the ledger's bytes at its highest instant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate, groupby, pairwise
from operator import neg

from msgspec import Struct

from ..ledger.ledger import ACT, GPU, GRAD, Ledger
from ..ledger.remember import Same
from ..run.phases import STARTUP
from ..runfile.resolve.resolved_run import ResolvedRun
from ..training.step.block_events import EMBEDDING, HEAD
from ..training.step.stream import written_stream
from .stage_replay import too_large
from .stage_requests import stage_requests
from .step_shape import StepOutline, Stretch, step_shape

Row = tuple[str, str, int]
"""What is alive of one name: kind, name and bytes."""
Rows = list[Row]
Range = tuple[int, int, int, int]
"""The first and the last stretch of a moment, its first event and the end of its events."""
PARTS = {HEAD: "head", EMBEDDING: "embedding"}
WORDS = {ACT: "kept for backward", GRAD: "weight gradients"}


class Moment(Struct, frozen=True, kw_only=True):
    """The highest moment of some stretches, or of a part of one.

    - stretch: the one in which it is; first, last: the numbers of the stretches it stands for
    - part: it is one of several of its stretch
    - doing: the name of the tensor that is made then; rows: what is alive
    """

    stretch: Stretch
    first: int
    last: int
    part: bool
    doing: str
    rows: Rows

    @property
    def bytes(self) -> int:
        """All that is alive."""
        return sum(size for _, _, size in self.rows)


class StepCourse(Struct, frozen=True, dict=True):
    """A step with sizes. `stays`: what is alive all through it."""

    shape: StepOutline
    sizes: list[int]
    stays: Rows

    @cached_property
    def _signed(self) -> list[int]:
        """At i the bytes of tensor i, at ~i what is left of them when it is freed."""
        return [*self.sizes, *map(neg, reversed(self.sizes))]

    @cached_property
    def _before(self) -> list[int]:
        """Bytes of each owner before the step."""
        old = ((life for life in lives if life.made < 0) for lives in self.shape.lives)
        return [sum(self.sizes[life.tensor] for life in lives) for lives in old]

    def moments(
        self, first: int, last: int, most: int, *, named: bool, parts: bool = False
    ) -> list[Moment]:
        """At most about `most` moments of the stretches from `first` to `last`, of several together
        where there are more; with `parts` several of each where there are few. `named`: what is
        alive has names, else only its kind.
        """
        shape = self.shape
        heights = [*accumulate(map(self._signed.__getitem__, shape.events))]
        ranges = [*_ranges(shape.stretches[: last + 1], first, most, parts=parts)]
        places = []
        for _, _, begin, end in ranges:
            here = heights[begin:end]
            places.append(begin + here.index(max(here)))
        rows = self._named(ranges, places) if named else self._kinds(places)
        found = []
        for (one, other, begin, end), at, alive in zip(ranges, places, rows, strict=True):
            inside = shape.stretches[one : other + 1]
            event = shape.events[at]
            found.append(
                Moment(
                    stretch=next(stretch for stretch in inside if at < stretch.end),
                    first=one,
                    last=other,
                    part=end - begin < inside[-1].end - inside[0].begin,
                    doing=shape.names[event] if event >= 0 else "",
                    rows=[*self.stays, *alive],
                )
            )
        return found

    def _kinds(self, places: list[int]) -> list[Rows]:
        """The bytes of each kind after some events."""
        before: dict[str, int] = {}
        for owner, size in zip(self.shape.owners, self._before, strict=True):
            before[owner.kind] = before.get(owner.kind, 0) + size
        rows: list[Rows] = [[] for _ in places]
        for kind, events, at in self.shape.kinds:
            sums = [0, *accumulate(map(self._signed.__getitem__, events))]
            for row, place in zip(rows, places, strict=True):
                row.append((kind, "", before[kind] + sums[bisect_right(at, place)]))
        return rows

    def _named(self, ranges: list[Range], places: list[int]) -> list[Rows]:
        """What is alive after some events, by its names."""
        shape, totals, done = self.shape, [*self._before], 0
        changes = [*map(self._signed.__getitem__, shape.events)]
        found = []
        for (one, other, _, _), at in zip(ranges, places, strict=True):
            new = slice(done, at + 1)
            for owner, change in zip(shape.owned[new], changes[new], strict=True):
                totals[owner] += change
            done = at + 1
            stretch = next(s for s in shape.stretches[one : other + 1] if at < s.end)
            found.append([*self._rows(totals, stretch, at)])
        return found

    def _rows(self, totals: list[int], stretch: Stretch, at: int) -> Iterator[Row]:
        """What is alive after an event: tensors of the block at work by their names, those of
        others together.
        """
        shape, sizes = self.shape, self.sizes
        own: dict[tuple[str, str], int] = {}
        others: dict[str, list[int]] = {}
        for number, total in enumerate(totals):
            if not total:
                continue
            owner = shape.owners[number]
            if owner.block is None:
                yield owner.kind, owner.name, total
            elif (owner.block, owner.micro_batch) == (stretch.block, stretch.micro_batch):
                for tensor, made, freed in shape.lives[number]:
                    if made <= at < freed and (size := sizes[tensor]):
                        key = owner.kind, shape.names[tensor]
                        own[key] = own.get(key, 0) + size
            else:
                others.setdefault(owner.kind, []).append(number)
        for (kind, name), size in own.items():
            yield kind, name, size
        for kind, numbers in others.items():
            words = _which(tuple(sorted({shape.owners[n].block or 0 for n in numbers})))
            yield kind, f"{words}: {WORDS[kind]}", sum(totals[n] for n in numbers)


FEWEST = 3  # parts of a stretch that are worth drawing
APART = 5  # parts of what is no layer's: the optimizer's step


def _ranges(stretches: Sequence[Stretch], first: int, most: int, *, parts: bool) -> Iterator[Range]:
    """The stretches and the events of each moment. What is no layer's has a few in any case."""
    count = len(stretches) - first
    each, room = -(-count // most), most // count
    for place in range(first, len(stretches), each):
        other = min(place + each, len(stretches)) - 1
        begin, end = stretches[place].begin, stretches[other].end
        usual = 1 if stretches[place].block is not None else APART
        usual = room if parts and room >= FEWEST else usual
        pieces = min(usual, end - begin) if each == 1 else 1
        bounds = [begin + (end - begin) * piece // pieces for piece in range(pieces + 1)]
        for low, high in pairwise(bounds):
            yield place, other, low, high


@cache
def _which(blocks: tuple[int, ...]) -> str:
    """Blocks in words: layers 1 to 12, head."""
    layers, words = [n + 1 for n in blocks if n >= 0], []
    for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0]):
        ends = [number for _, number in run]
        words.append(f"{ends[0]} to {ends[-1]}" if len(ends) > 1 else f"{ends[0]}")
    listed = [f"layer{'s' * (len(layers) > 1)} {', '.join(words)}"] if words else []
    return ", ".join([*listed, *(PARTS[n] for n in blocks if n < 0)])


def step_course(resolved: ResolvedRun, stage: int, ledger: Ledger) -> StepCourse | None:
    """The course of a stage's step, of which `ledger` is the ledger; None where a run is too large
    to be replayed.
    """
    if too_large(ledger, resolved.allocator):
        return None
    asked = stage_requests(resolved, stage)
    stream = asked.usual
    written = written_stream(asked.like, stream)
    if written is None:
        return None
    shape = step_shape(Same(written))
    sizes = [*map(stream.sizes.__getitem__, shape.tensors)]
    return StepCourse(shape, sizes, _stays(ledger))


def _stays(ledger: Ledger) -> Rows:
    """What is alive at every instant of a step."""
    names = [i.name for i in ledger.instants if i.present and i.phase != STARTUP and not i.step]
    rows = []
    for entry in ledger.entries:
        if entry.place == GPU:
            copies = min(int(entry.live.get(name, 0)) for name in names)
            rows.append((entry.kind, entry.name, int(entry.bytes) * copies))
    return [row for row in rows if row[2]]
