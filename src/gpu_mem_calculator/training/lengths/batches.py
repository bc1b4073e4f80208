"""The batches that a run draws: the shapes of each step, in one order or in several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, tee
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from ...run.run import Run
from .distributions import Draw
from .samplers import DISTRIBUTED, SEQUENTIAL, epochs, rank_batches

ORDERS = 20  # drawn where the order is not known
MOST_STEPS, MOST_UNKNOWN = 200, 100
"""Steps that are replayed where the order is known and where it is not; of later ones those that
are larger than all before."""
MOST_RANKS = 64  # whose batches are looked at; the one with the longest is replayed
MOST_SEARCHED = 100_000  # steps in which the longest batch is looked for
MOST_DRAWN = 2_000  # steps of a distribution
LONGEST, MAX_LENGTH, PADDING_FREE = "longest", "max_length", "padding_free"
PADDINGS = (LONGEST, MAX_LENGTH, PADDING_FREE)


class BatchShape(Struct, frozen=True, order=True):
    """A micro-batch as the model gets it.

    - tokens: of each of its sequences, with the padding
    - padded: some sequences are shorter, and attention gets a mask
    - labelled: tokens with a label in a sequence, on average; 0: all but the first
    """

    sequences: int
    tokens: int
    padded: bool = False
    labelled: int = 0

    @property
    def total(self) -> int:
        """Tokens of the batch."""
        return self.sequences * self.tokens

    def of(self, run: Run) -> Run:
        """The run with this micro-batch."""
        rows, labelled = self.sequences, self.labelled or None
        return replace(run, batch=rows, seq=self.tokens, padded=self.padded, labelled=labelled)


Step = tuple[BatchShape, ...]  # its micro-batches
Order = tuple[Step, ...]
Steps = Iterator[Step]


class Collator(Struct, frozen=True, kw_only=True):
    """How examples become a micro-batch.

    - most: longer examples are cut to this many tokens; None: they are not
    - multiple: padded lengths are multiples of it
    - prompt: tokens of each example without a label; None: labels do not matter
    - masked: attention gets a mask where sequences are padded; always: also where they are not
    """

    padding: str = LONGEST
    multiple: int = 1
    most: int | None = None
    prompt: int | None = None
    masked: bool = True
    always: bool = False

    def shape(self, lengths: Sequence[int]) -> BatchShape:
        """The micro-batch of these examples."""
        lengths = [min(one, self.most) for one in lengths] if self.most else lengths
        count, longest = len(lengths), max(lengths)
        if self.padding == PADDING_FREE:
            count, longest = 1, sum(lengths)
        elif self.padding == MAX_LENGTH:
            longest = self.most or longest
        tokens = -(-longest // self.multiple) * self.multiple
        can = self.masked and self.padding != PADDING_FREE
        padded = can and (self.always or min(lengths) < tokens)
        labelled = 0
        if self.prompt is not None:
            labels = sum(max(one - max(self.prompt, 1), 0) for one in lengths)
            labelled = max(-(-labels // count), 1)
        return BatchShape(count, tokens, padded, labelled if labelled < tokens - 1 else 0)


class Batching(Struct, frozen=True, kw_only=True):
    """How a run draws its batches.

    - rows: examples of a micro-batch on one rank; micro_batches: of a step
    - number: the one that torch is given; None: it is not known
    """

    rows: int
    micro_batches: int
    ranks: int
    collator: Collator
    strategy: str
    number: int | None = None
    drop_last: bool = False

    def steps_of(self, orders: Iterable[Sequence[int]], lengths: Sequence[int], rank: int) -> Steps:
        """The steps of a rank by the orders of the epochs; each epoch's last one may have fewer
        micro-batches.
        """
        for order in orders:
            batches = self._batches(order, rank)
            if not batches:
                return
            shapes = [self.collator.shape([lengths[i] for i in one]) for one in batches]
            for begin in range(0, len(shapes), self.micro_batches):
                yield tuple(shapes[begin : begin + self.micro_batches])

    def orders(self, lengths: Sequence[int], number: int) -> Iterator[Sequence[int]]:
        """The order of each epoch."""
        return epochs(self.strategy, lengths, self.rows * self.micro_batches, number)

    def _batches(self, order: Sequence[int], rank: int) -> list[Sequence[int]]:
        shared = self.strategy == DISTRIBUTED
        return rank_batches(
            order, self.rows, self.ranks, rank, drop_last=self.drop_last, distributed=shared
        )

    def epoch_steps(self, examples: int) -> int:
        """The steps of an epoch."""
        return -(-len(self._batches(range(examples), 0)) // self.micro_batches)


class DrawnBatches(Struct, frozen=True, kw_only=True, dict=True):
    """The batches of a run.

    - orders: the steps that are replayed: one order where it is known, else several; of several
      ranks each is one
    - numbers: of these steps, from 1
    - known: whether they are what the run draws
    - steps: of the run; epoch: of an epoch, None where the data set's size is not known
    - replayed: the first steps, without those that follow because they are larger
    - batching: how they were drawn; sets: the lengths of the examples of each order, or of all
    - chosen: which of the orders the estimate shows
    """

    orders: tuple[Order, ...]
    numbers: tuple[tuple[int, ...], ...]
    known: bool
    steps: int
    epoch: int | None
    replayed: int
    batching: Batching
    sets: tuple[Sequence[int], ...]
    chosen: int = 0

    @property
    def main(self) -> Order:
        """The order that the estimate shows."""
        return self.orders[self.chosen]

    @cached_property
    def longest(self) -> BatchShape:
        """Its micro-batch with the most tokens."""
        return max((batch for step in self.main for batch in step), key=size)

    @property
    def longest_step(self) -> int:
        """The first step that has it, from 1."""
        numbered = zip(self.numbers[self.chosen], self.main, strict=True)
        return next(number for number, step in numbered if self.longest in step)


def size(shape: BatchShape) -> tuple[int, int, bool]:
    """What batches are compared by: tokens, those of a sequence, and whether it has a mask."""
    return shape.total, shape.tokens, shape.padded


def draw_batches(
    batching: Batching,
    lengths: Sequence[int] = (),
    draw: Draw | None = None,
    examples: int | None = None,
    steps: int | None = None,
    times: float | None = None,
) -> DrawnBatches:
    """The batches of a run: of a data set's lengths in order, or of a distribution.

    examples: of the data set, where only the distribution is known; steps: of the run, or how many
    `times` it goes through the data set
    """
    count = len(lengths) or examples
    epoch = batching.epoch_steps(count) if count else None
    steps = steps or (ceil(epoch * (times or 1)) if epoch else MOST_UNKNOWN)
    known = bool(lengths) and (batching.strategy == SEQUENTIAL or batching.number is not None)
    first = min(steps, MOST_STEPS if known else MOST_UNKNOWN)
    sets: list[Sequence[int]] = [lengths]
    if not lengths:
        count = count or min(steps, MOST_DRAWN) * batching.rows * batching.micro_batches
        sets = [_drawn(draw, number, count) for number in range(ORDERS)]
    if known:
        ranks = min(batching.ranks, MOST_RANKS)
        shared = tee(batching.orders(lengths, batching.number or 0), ranks)
        tries = [batching.steps_of(one, lengths, rank) for rank, one in enumerate(shared)]
    else:
        tries = [_one_order(batching, sets, number) for number in range(ORDERS)]
    orders = [_with_larger(islice(one, min(steps, MOST_SEARCHED)), first) for one in tries]
    if known:
        orders = [max(orders, key=lambda order: max(size(b) for _, s in order for b in s))]
    return DrawnBatches(
        orders=tuple(tuple(step for _, step in order) for order in orders),
        numbers=tuple(tuple(number for number, _ in order) for order in orders),
        known=known,
        steps=steps,
        epoch=epoch,
        replayed=first,
        batching=batching,
        sets=tuple(sets),
    )


def _one_order(batching: Batching, sets: Sequence[Sequence[int]], number: int) -> Steps:
    """The steps of one rank in one of several orders."""
    lengths = sets[number % len(sets)]
    return batching.steps_of(batching.orders(lengths, number), lengths, 0)


def redrawn(drawn: DrawnBatches, strategy: str) -> Order:
    """As many steps of the order that is shown, drawn in another way."""
    batching = replace(drawn.batching, strategy=strategy)
    number = drawn.chosen if batching.number is None else batching.number
    lengths = drawn.sets[drawn.chosen % len(drawn.sets)]
    steps = batching.steps_of(batching.orders(lengths, number), lengths, 0)
    return tuple(islice(steps, drawn.replayed))


def _drawn(draw: Draw | None, number: int, count: int) -> list[int]:
    assert draw is not None, "a run has lengths or a distribution of them"
    from random import Random  # which takes longer to import than most commands

    random = Random(number)
    return [draw(random) for _ in range(count)]


def _with_larger(steps: Steps, first: int) -> list[tuple[int, Step]]:
    """The first steps with their numbers, and those of the later ones that have a larger batch than
    all before.
    """
    found = list(islice(enumerate(steps, 1), first))
    largest = max(size(batch) for _, step in found for batch in step)
    for number, step in enumerate(steps, first + 1):
        if (most := max(map(size, step))) > largest:
            largest = most
            found.append((number, step))
    return found
