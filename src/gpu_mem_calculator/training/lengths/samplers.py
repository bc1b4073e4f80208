"""The order in which a training run takes the examples of its data set, epoch by epoch.

torch's random numbers on the CPU, and its permutations, without torch: torch 2.13
ATen/core/MT19937RNGEngine.h (the seed fills the state), native/TensorFactories.cpp randperm_cpu.
Python's `random` has the same Mersenne Twister, whose state can be set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

RANDOM, SEQUENTIAL, GROUPED = "random", "sequential", "group_by_length"
DISTRIBUTED = "distributed"
STRATEGIES = (RANDOM, SEQUENTIAL, GROUPED, DISTRIBUTED)
MOST_MEGA_BATCHES = 50
WORDS = 624  # of the state
LOW = 0xFFFFFFFF  # 32 bits
FACTOR = 1812433253


class TorchGenerator:
    """A `torch.Generator` after `manual_seed`."""

    __slots__ = ("_random",)

    def __init__(self, number: int) -> None:
        from random import Random  # which takes longer to import than most commands

        self._random = Random()
        self._random.setstate((3, (*_state(number), WORDS), None))

    def next32(self) -> int:
        """The next 32 bits."""
        return self._random.getrandbits(32)

    def skip64(self) -> None:
        """What one `torch.empty((), dtype=torch.int64).random_()` takes."""
        self._random.getrandbits(64)

    def permutation(self, count: int) -> list[int]:
        """`torch.randperm(count, generator=self)`, for less than 2^32 / 20 numbers."""
        order = list(range(count))
        for place in range(count - 1):
            other = place + self.next32() % (count - place)
            order[place], order[other] = order[other], order[place]
        return order


def _state(number: int) -> Iterator[int]:
    word = number & LOW
    yield word
    for place in range(1, WORDS):
        word = (FACTOR * (word ^ word >> 30) + place) & LOW
        yield word


def epochs(
    strategy: str, lengths: Sequence[int], batch: int, number: int
) -> Iterator[Sequence[int]]:
    """The examples of each epoch, by their places in the data set, without end.

    batch: examples of a step on one rank; number: the one that torch is given (`manual_seed`)
    """
    if strategy == SEQUENTIAL:
        yield from iter(lambda: range(len(lengths)), None)
    elif strategy == GROUPED:
        yield from _grouped(lengths, batch, number)
    else:
        yield from (TorchGenerator(number + epoch).permutation(len(lengths)) for epoch in count())


def _grouped(lengths: Sequence[int], batch: int, number: int) -> Iterator[list[int]]:
    """transformers 5.17.0 trainer_pt_utils.py get_length_grouped_indices: in each part of a
    permutation the longest example comes first, and the longest of all in the first part.

    LengthGroupedSampler has torch's own generator, which Trainer sets (trainer.py:409), and of
    which a DataLoader takes one number for each epoch (torch/utils/data/dataloader.py:690).
    """
    generator = TorchGenerator(number)
    part = batch * max(min(len(lengths) // (batch * 4), MOST_MEGA_BATCHES), 1)
    while True:
        generator.skip64()
        order = generator.permutation(len(lengths))
        parts = [
            sorted(order[begin : begin + part], key=lengths.__getitem__, reverse=True)
            for begin in range(0, len(order), part)
        ]
        longest = max(parts, key=lambda one: lengths[one[0]])
        parts[0][0], longest[0] = longest[0], parts[0][0]
        yield [example for one in parts for example in one]


def rank_batches(
    order: Sequence[int], rows: int, ranks: int, rank: int, *, drop_last: bool, distributed: bool
) -> list[Sequence[int]]:
    """The batches of one rank in an epoch.

    - One rank: batches in order, the last one smaller.
    - Several, as Accelerate shards batches (accelerate 1.15.0 data_loader.py BatchSamplerShard,
      even_batches): the ranks take turns, and begin again at the first examples.
    - `distributed`: as torch's DistributedSampler, where the ranks take turns at examples.
    """
    if distributed and ranks > 1:
        share = len(order) // ranks if drop_last else -(-len(order) // ranks)
        own = _filled(order, share * ranks, len(order))[rank : share * ranks : ranks]
        return _cut(own, rows, whole=drop_last)
    if ranks > 1:
        turns = len(order) // (rows * ranks) if drop_last else -(-len(order) // (rows * ranks))
        order = _filled(order, turns * rows * ranks, rows * ranks)
    return _cut(order, rows, whole=drop_last)[rank::ranks]


def _filled(order: Sequence[int], size: int, first: int) -> Sequence[int]:
    """An order of this size: cut, or with its `first` ones again."""
    again = order[:first]
    missing = max(size - len(order), 0)
    return [*order[:size], *(again[i % len(again)] for i in range(missing))]


def _cut(order: Sequence[int], rows: int, *, whole: bool) -> list[Sequence[int]]:
    batches = [order[begin : begin + rows] for begin in range(0, len(order), rows)]
    return batches[:-1] if whole and batches and len(batches[-1]) < rows else batches
