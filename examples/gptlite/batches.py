"""Which items of a data set are in which micro-batch.

It follows from the seed and the step alone: every rank takes its own part, and a run that is
resumed goes on with what an unbroken one would have seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


@dataclass
class Order:
    """Micro-batches of one rank, without end, from step `first` on."""

    items: int
    seed: int
    batch: int
    accumulation: int
    rank: int = 0
    ranks: int = 1
    first: int = 0

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of items: the whole data set in a new order every epoch."""
        epoch, order = -1, []
        for number in itertools.count(self.first * self.accumulation):
            found = []
            start = (number * self.ranks + self.rank) * self.batch
            for place in range(start, start + self.batch):
                if place // self.items != epoch:
                    epoch = place // self.items
                    order = shuffled(self.items, self.seed + epoch)
                found.append(order[place % self.items])
            yield found


def shuffled(items: int, seed: int) -> list[int]:
    """All items in an order that the seed decides."""
    dice = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randperm(items, generator=dice, device="cpu").tolist()


def batches(dataset: Dataset, engine: Any, seed: int, first: int = 0) -> Iterator[Any]:
    """A data set's micro-batches for the rank of an engine, as DeepSpeed's config sizes them.

    The stages of a pipeline see the same batch: what counts is the data-parallel rank.
    """
    ranks = engine.dp_world_size
    rank = engine.mpu.get_data_parallel_rank() if engine.mpu else engine.global_rank
    order = Order(
        len(dataset),
        seed,
        engine.train_micro_batch_size_per_gpu(),  # type: ignore[arg-type]
        engine.gradient_accumulation_steps(),
        rank,
        ranks,
        first,
    )
    return iter(DataLoader(dataset, batch_sampler=order))  # type: ignore[arg-type]
